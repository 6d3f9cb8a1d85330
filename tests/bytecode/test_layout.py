# ruff: noqa: B018, F821
from __future__ import annotations

import sys

from minidynamo.bytecode.analysis import first_index
from minidynamo.bytecode.instructions import decode
from minidynamo.bytecode.layout import CELL, NULL, VALUE, FramePoint, exits, frame_point

PAIR = (NULL, VALUE) if sys.version_info < (3, 13) else (VALUE, NULL)


def index_of(fn, opname):
    return next(i.index for i in decode(fn.__code__) if i.opname == opname)


def only(point):
    (way,) = exits(point)
    return way.point


def test_a_point_holds_what_is_live_in_the_order_of_the_slots():
    def f(a, b, c):
        probe
        return b, a

    point = frame_point(f.__code__, first_index(f.__code__), [], ["c", "b", "a"], [])
    assert point.locals == ("a", "b")
    assert point.size == 2
    assert point == frame_point(f.__code__, first_index(f.__code__), (), ("a", "b"), ())


def test_a_point_lies_at_the_start_of_a_call():
    def f(g):
        return g(end=1)

    stack = (*PAIR, VALUE) if sys.version_info < (3, 13) else (*PAIR, VALUE, VALUE)
    call = index_of(f, "CALL" if sys.version_info < (3, 13) else "CALL_KW")
    point = frame_point(f.__code__, call, stack, [], [])
    after = only(point)
    assert after.stack == (VALUE,)
    assert decode(f.__code__)[after.index].opname == "RETURN_VALUE"
    assert exits(after) == ()


def test_nulls_beside_callables():
    def f():
        return len(xs.append(1))

    after_len = only(frame_point(f.__code__, first_index(f.__code__), [], [], []))
    assert after_len.stack == PAIR
    after_method = only(only(after_len))
    assert after_method.stack == (*PAIR, *PAIR)


def test_both_ways_of_a_loop_and_of_a_branch():
    def f(xs):
        for x in xs:
            if x is None:
                return x
        return xs

    step = frame_point(f.__code__, index_of(f, "FOR_ITER"), [VALUE], ["xs"], [])
    ways = {way.jumped: way.point for way in exits(step)}
    assert ways[False].stack == (VALUE, VALUE)
    assert ways[True].stack == ()
    assert ways[True].locals == ("xs",)
    branch = next(i for i in decode(f.__code__) if "NONE" in i.opname)
    point = frame_point(f.__code__, branch.index, [VALUE, VALUE], ["xs", "x"], [])
    assert {way.point.stack for way in exits(point)} == {(VALUE,)}
    assert {way.jumped for way in exits(point)} == {False, True}


def test_cells_travel_as_cells():
    def f(x):
        return lambda: x

    point = frame_point(f.__code__, first_index(f.__code__), [], [], ["x"])
    assert point.cells == ("x",)
    after = only(point)
    assert (after.stack, after.cells) == ((CELL,), ())
    assert only(after).stack == (VALUE,)


def test_bound_locals_follow_stores_and_deletions():
    def f(x):
        y = x
        del x
        return y

    point = frame_point(f.__code__, first_index(f.__code__), [], ["x"], [])
    seen = []
    while exits(point):
        seen.append(point.locals)
        point = only(point)
    assert ("x", "y") in seen
    assert point.locals == ()
    assert point.stack == (VALUE,)


def test_parameters_are_distinct_identifiers():
    def f(x):
        return x

    slots = ("x", "x (local)", ".0", "argument_0", "stack_0", "x_local")
    point = FramePoint(f.__code__, 0, (VALUE, NULL, VALUE), slots, ("cell",))
    parameters = point.parameters
    assert parameters[:3] == ("cell", "stack_0", "stack_2")
    assert len(set(parameters)) == len(parameters) == point.size
    assert all(name.isidentifier() for name in parameters)
    assert "x" in parameters
