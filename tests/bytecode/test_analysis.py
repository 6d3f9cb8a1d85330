# ruff: noqa: B018, F821, F841, E731, C416
from __future__ import annotations

import contextlib
import sys

import pytest

from minidynamo.bytecode.analysis import (
    first_index,
    group_of,
    in_except_handler,
    is_in_try,
    jump_targets,
    live_locals,
    reason_against_cut,
    successors,
)
from minidynamo.bytecode.instructions import decode
from tests.bytecode import corpus


def index_of(fn, opname, argval=None):
    return next(i.index for i in decode(fn.__code__) if i.opname == opname and argval in (None, i.argval))


def load_of(fn, name):
    """Returns the index of the instruction that loads the global `name`."""
    return index_of(fn, "LOAD_GLOBAL", name)


def live_at(fn, name):
    return set(live_locals(fn.__code__, load_of(fn, name)))


def test_calls_are_one_group():
    def f(g, x):
        return g(x, end=g(x))

    code = f.__code__
    for instruction in decode(code):
        group = group_of(code, instruction.index)
        if instruction.opname in ("KW_NAMES", "PRECALL", "CALL"):
            assert decode(code)[group.stop - 1].opname == "CALL"
            assert instruction.index in group
            assert all(group_of(code, k) == group for k in group)
        else:
            assert group == range(instruction.index, instruction.index + 1)


def test_a_conversion_to_bool_and_what_needs_the_bool_are_one_group():
    def f(a, b):
        if a and a < b:
            return not a
        return a < b

    code = f.__code__
    decoded = decode(code)
    for instruction in decoded:
        if instruction.opname in ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "UNARY_NOT"):
            converted = decoded[instruction.index - 1].opname == "TO_BOOL"
            assert converted is (sys.version_info >= (3, 13))
            group = range(instruction.index - converted, instruction.index + 1)
            assert all(group_of(code, k) == group for k in group)


def test_first_index_is_behind_resume():
    assert decode(corpus.closures.__code__)[first_index(corpus.closures.__code__) - 1].opname == "RESUME"


def test_only_what_is_read_later_is_live():
    def f(a, b, c, d):
        probe
        a + b
        c = 1
        del d
        later
        return c

    assert live_at(f, "probe") == {"a", "b", "d"}
    assert live_at(f, "later") == {"c"}


def test_loops_and_branches_keep_alive():
    def f(xs, a, b, c):
        for x in xs:
            probe
            if a:
                x = b
            else:
                b = x
            c = x

    assert live_at(f, "probe") == {"x", "a", "b"}


def test_what_a_handler_reads_is_live():
    def f(a, b):
        try:
            a = probe()
        except ValueError:
            return b
        return 0

    assert live_at(f, "probe") == {"b"}


def test_a_cell_is_live_while_it_is_used():
    def f(a, b):
        probe
        a = 1
        keep = lambda: (a, b)
        later
        del keep

    assert live_at(f, "probe") == {"a", "b"}
    assert live_at(f, "later") == {"keep"}


@pytest.mark.parametrize("name", ["locals", "eval", "_getframe"])
def test_reading_locals_by_name_keeps_all(name):
    def f(a, b):
        probe

    code = f.__code__.replace(co_names=(*f.__code__.co_names, name))
    assert live_locals(code, load_of(f, "probe")) == {"a", "b"}


def test_super_without_arguments_needs_self():
    assert {"self", "__class__"} <= live_locals(corpus.Child.scale.__code__, first_index(corpus.Child.scale.__code__))
    last = len(decode(corpus.Child.scale.__code__)) - 1
    assert {"self", "__class__"} <= live_locals(corpus.Child.scale.__code__, last)


def test_successors_and_targets():
    def f(x):
        return 1 if x else 2

    code = f.__code__
    branch = next(i for i in decode(code) if i.target is not None)
    assert successors(code, branch.index) == (branch.index + 1, branch.target)
    assert branch.target in jump_targets(code)
    assert successors(code, len(decode(code)) - 1) == ()


def test_generators_coroutines_and_class_bodies_cannot_be_cut():
    def generator():
        yield probe

    async def coroutine():
        probe

    for fn in (generator, coroutine):
        assert "own frame" in reason_against_cut(fn.__code__, load_of(fn, "probe"))
    module = compile("x = 1\ny = x", "m", "exec")
    assert "module body" in reason_against_cut(module, len(decode(module)) - 1)


def test_the_prologue_cannot_be_cut():
    assert "not set up" in reason_against_cut(corpus.closures.__code__, 0)
    assert reason_against_cut(corpus.closures.__code__, first_index(corpus.closures.__code__)) is None


def handled(x):
    before
    try:
        inside
    except ValueError as e:
        handling
        with suppress:
            nested_with
        try:
            nested
        except KeyError:
            nested_handler
        nested_after
    else:
        otherwise
    finally:
        last
    after


def in_with(x):
    with suppress:
        try:
            inside
        except ValueError as e:
            handling
    for _ in x:
        with suppress:
            loop
    after


@pytest.mark.parametrize(
    "fn, name, expected",
    [
        (handled, "before", False),
        (handled, "inside", False),
        (handled, "handling", True),
        (handled, "nested_with", True),
        (handled, "nested", True),
        (handled, "nested_handler", True),
        (handled, "nested_after", True),
        (handled, "otherwise", False),
        (handled, "last", False),
        (handled, "after", False),
        (in_with, "inside", False),
        (in_with, "handling", True),
        (in_with, "loop", False),
        (in_with, "after", False),
    ],
)
def test_places_where_an_exception_is_in_flight(fn, name, expected):
    index = load_of(fn, name)
    assert in_except_handler(fn.__code__, index) is expected
    assert (reason_against_cut(fn.__code__, index) is not None) is expected


def test_the_exceptional_copy_of_finally_is_in_flight():
    code = handled.__code__
    copies = [in_except_handler(code, i.index) for i in decode(code) if i.argval == "last"]
    assert True in copies
    assert False in copies


def test_nothing_on_a_native_run_is_taken_for_a_handler():
    """Each instruction that a run without exceptions reaches can be a cut."""

    def f():
        with contextlib.suppress(ValueError), contextlib.suppress(KeyError):
            for k in [1]:
                try:
                    k += 1
                except (ValueError, TypeError) as e:
                    print(e)
                    continue
                finally:
                    k += 1
        return [k for k in [1]]

    code = f.__code__
    reached, work = set(), [first_index(code)]
    while work:
        index = work.pop()
        if index not in reached:
            reached.add(index)
            work += successors(code, index)
    assert [decode(code)[k] for k in sorted(reached) if reason_against_cut(code, k)] == []


def test_what_clears_up_is_no_try():
    def f(x):
        a = [k for k in x]
        try:
            b = [k + 1 for k in x]
        except ValueError:
            b = a
        with x:
            b.append(0)
        return b

    code = f.__code__
    lines = {}
    for i in decode(code):
        line = (i.positions.lineno or code.co_firstlineno) - code.co_firstlineno
        lines.setdefault(line, set()).add(is_in_try(code, i.index))
    assert lines[1] == {False}
    assert True in lines[3] and lines[7] == {True}
