"""Objects that a frame drops, checked on frames; whole programs are in tests/end_to_end/lifetimes/test_finalizers.py
and test_watched_deaths.py."""

import weakref

from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, guards_on


class Plain:
    child = None


def given_up(value):
    value = 1
    return [value]


def replaced(value):
    value = value.child
    return [value]


def kept(value):
    other = [value]
    del value
    return other


def test_that_nobody_is_told_is_guarded():
    assert guards_on(capture(given_up, Plain()), "value") == {GuardKind.UNNOTICED_DEATH: None}
    assert GuardKind.UNNOTICED_DEATH in guards_on(capture(replaced, Plain()), "value")


def test_the_frame_is_cut_where_somebody_is():
    value = Plain()
    reference = weakref.ref(value, lambda _: None)
    assert reference() is value
    for fn in (given_up, replaced):
        end = capture(fn, value).exit
        assert isinstance(end, Break) and "drops an object" in end.diagnostic.what


def test_tensors_and_constants_do_not_count():
    for value in (1, None, "text"):
        assert GuardKind.UNNOTICED_DEATH not in guards_on(capture(given_up, value), "value")
