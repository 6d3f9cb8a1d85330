"""Tests of minidynamo/guards/guard_list.py: guards that are installed once, and guards installed several times."""

from __future__ import annotations

import typing

from minidynamo.errors import UserLocation
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.guard_list import GuardList
from minidynamo.guards.source import Constant, Item, Local

X = Local("x")


def test_guards_are_installed_once_in_order_with_the_line_of_the_first() -> None:
    lines = iter((1, 2, 3))
    guards = GuardList(lambda: UserLocation("f.py", next(lines), "f"))
    guards.install(X, GuardKind.TYPE, int)
    guards.install(Local("y"), GuardKind.TYPE, int)
    guards.install(X, GuardKind.TYPE, int)
    assert [(guard.source, guard.where and guard.where.lineno) for guard in guards] == [(X, 1), (Local("y"), 2)]


def test_some_kinds_are_told_apart_by_what_is_expected() -> None:
    guards = GuardList(lambda: None)
    for key in ("a", "b", "a"):
        guards.install(X, GuardKind.MISSING_KEY, key)
    for name, value in (("f", 1), ("g", 1), ("f", 1)):
        guards.install(X, GuardKind.CLASS_ATTR, (name, value))
    assert [guard.expected for guard in guards] == ["a", "b", ("f", 1), ("g", 1)]


def test_what_a_constant_is_cannot_change() -> None:
    guards = GuardList(lambda: None)
    guards.install(Constant(int, "int"), GuardKind.IDENTITY, int)
    guards.install(Constant(int, "int"), GuardKind.CLASS_ATTR, ("real", None))
    assert [guard.kind for guard in guards] == [GuardKind.CLASS_ATTR]


def test_what_is_compared_with_other_objects_is_there() -> None:
    for kind, expected in ((GuardKind.SAME_OBJECT, Local("y")), (GuardKind.DISTINCT_OBJECTS, (Local("y"),))):
        guards = GuardList(lambda: None)
        guards.install(X, GuardKind.PRESENT, None)
        assert [guard.kind for guard in guards] == [GuardKind.PRESENT]
        guards.install(X, kind, expected)
        assert [guard.kind for guard in guards] == [kind]


def test_a_length_tells_which_items_are_there() -> None:
    for cls, places, kept in ((list, (0, 2, -3, 3), [3]), (dict, (0, 1), [0, 1])):
        guards = GuardList(lambda: None)
        guards.install(X, GuardKind.TYPE, cls)
        for place in places:
            guards.install(Item(X, place), GuardKind.PRESENT, None)
        guards.install(X, GuardKind.LENGTH, 3)
        present = [guard.source for guard in guards if guard.kind is GuardKind.PRESENT]
        assert present == [Item(X, place) for place in kept]


class Replaceable:
    """Allows assignments to `__class__` of its instances."""


def test_a_class_is_not_asked_for_beside_the_object_unless_it_can_be_replaced() -> None:
    for value, kinds in (
        (None, [GuardKind.IDENTITY]),
        (Replaceable(), [GuardKind.TYPE, GuardKind.IDENTITY]),
        (typing, [GuardKind.TYPE, GuardKind.IDENTITY]),
    ):
        one, other = GuardList(lambda: None), GuardList(lambda: None)
        one.install(X, GuardKind.TYPE, type(value))
        one.install(X, GuardKind.IDENTITY, value)
        other.install(X, GuardKind.IDENTITY, value)
        other.install(X, GuardKind.TYPE, type(value))
        assert [guard.kind for guard in one] == kinds
        assert {guard.kind for guard in other} == set(kinds)


def test_that_two_are_not_one_object_is_asked_once_and_not_where_each_is_known() -> None:
    y, known = Local("y"), Constant(int, "int")
    guards = GuardList(lambda: None)
    for left, right in ((X, y), (y, X), (X, known), (known, X)):
        guards.install(left, GuardKind.DISTINCT_OBJECTS, (right,))
    assert [(guard.source, guard.expected) for guard in guards] == [(X, (y,)), (X, (known,))]
    guards.install(X, GuardKind.IDENTITY, float)
    assert [guard.kind for guard in guards] == [GuardKind.DISTINCT_OBJECTS, GuardKind.IDENTITY]
    guards.install(y, GuardKind.IDENTITY, str)
    assert [guard.kind for guard in guards] == [GuardKind.IDENTITY, GuardKind.IDENTITY]
