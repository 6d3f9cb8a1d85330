from __future__ import annotations

import itertools

import pytest

from minidynamo.errors import FrozenCallDiffers
from minidynamo.frontend import frames
from minidynamo.frontend.dispatcher_text import dispatch_source, frozen_function, native_source, timed_function
from minidynamo.frontend.frames import RootFrame
from minidynamo.guards.cache import Entry, make_entry
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Local


def f(x, n=2):
    return x, n


HEAD = """\
def f(x, n=None):
    try:
        changed = function7.__code__ is not code or function7.__defaults__ is not defaults
    except NameError:
        raise __import__("minidynamo.frontend.frames", fromlist=["refuse_copy"]).refuse_copy('f') from None
    if changed:
        return follow_change([x, n])
    if n is left_out_7_n:
        n = defaults[0]
"""


@pytest.fixture
def frame(monkeypatch) -> RootFrame:
    monkeypatch.setattr(frames, "_marks", itertools.count(7))
    return RootFrame(f, "f")


def version(n: int) -> Entry:
    guards = [Guard(Local("x"), GuardKind.TYPE, int), Guard(Local("n"), GuardKind.EQUALS, n)]
    return make_entry(guards, ("x", "n"), lambda boxed: (n, boxed[0]), number=n)


TAIL = "    except hide():\n        raise\n"


def test_entries_are_tried_in_order(frame):
    one, two = version(1), version(2)
    source = dispatch_source(frame, {two: "body1", one: "body0"}, 7)
    assert source.startswith(f"{HEAD}    try:\n        if None not in ticks:\n            time_guards([x, n])\n")
    assert source.index("return body1(boxed)") < source.index("return body0(boxed)")
    assert source.endswith(f"        del x, n\n        return miss(boxed, 7)(boxed)\n{TAIL}")


def test_natively_there_is_nothing_to_check(frame):
    lines = "        boxed = [x, n]\n        del x, n\n        return native(boxed)\n"
    assert native_source(frame) == f"{HEAD}    try:\n{lines}{TAIL}"


def test_the_timed_twin_ends_whether_an_entry_fits_or_not():
    timed = timed_function(RootFrame(f, "f"), [version(1)])
    assert timed(1, 1) > 0 and timed("text", 2) > 0


def test_a_frozen_function_looks_at_what_tells_versions_apart():
    both = frozen_function(RootFrame(f, "f"), [version(1), version(2)], 0, lambda: None)
    assert both(5, 1) == (1, 5) and both(5) == (2, 5)
    assert both("unchecked", 1) == (1, "unchecked")  # the check that x is an int is common to both
    with pytest.raises(FrozenCallDiffers):
        both(5, 3)
    checked = frozen_function(RootFrame(f, "f"), [version(1)], 2, lambda: None)
    assert checked(5, 1) == checked(5, 3) == (1, 5)
    with pytest.raises(FrozenCallDiffers):
        checked(5, 3)
