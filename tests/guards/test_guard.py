"""Tests of minidynamo/guards/guard.py: each kind of guard holds and fails when it should."""

import collections
import math
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from minidynamo.guards.check import write_condition
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Constant, InstanceAttr, Item, Local, TypeOf

X = Local("x")
K = GuardKind


class Base:
    shared = 1

    def method(self) -> None: ...


class Derived(Base):
    other = 2


class Slots:
    __slots__ = ("a",)


class Hostile:
    """Raises on every operation that a check might run by mistake."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("user code ran")

    def __hash__(self) -> int:
        raise AssertionError("user code ran")

    def __len__(self) -> int:
        raise AssertionError("user code ran")

    def __bool__(self) -> bool:
        raise AssertionError("user code ran")

    def __iter__(self) -> Any:
        raise AssertionError("user code ran")

    def __contains__(self, item: object) -> bool:
        raise AssertionError("user code ran")


class HostileList(Hostile, list):  # type: ignore[type-arg]
    pass


class HostileDict(Hostile, dict):  # type: ignore[type-arg]
    pass


def _holds(guards: Guard | list[Guard], **arguments: object) -> bool:
    guards = guards if isinstance(guards, list) else [guards]
    condition = write_condition(guards, tuple(arguments))
    try:
        return bool(eval(condition.text, dict(condition.namespace), dict(arguments)))
    except AssertionError:
        raise
    except Exception:
        return False


def _instance(**attributes: object) -> Derived:
    made = Derived()
    made.__dict__.update(attributes)
    return made


class Slotted:
    __slots__ = ("slot",)


def _slotted(value: object) -> Slotted:
    made = Slotted()
    made.slot = value
    return made


def _function() -> None: ...


EMPTY = types.CellType()
CASES: list[tuple[GuardKind, Any, list[Any], list[Any]]] = [
    (K.TYPE, int, [3], [True, 3.0, None, Hostile()]),
    (K.TYPE, Base, [Base()], [Derived(), None]),
    (K.IDENTITY, None, [None], [0, Hostile()]),
    (K.IDENTITY, True, [True], [1, None]),
    (K.IDENTITY, _function, [_function], [lambda: None, None, Hostile()]),
    (K.IDENTITY, torch.relu, [torch.relu], [torch.sin]),
    (K.IDENTITY, Base, [Base], [Derived]),
    (K.IDENTITY, torch.float32, [torch.float32], [torch.float64]),
    (K.EQUALS, 3, [3], [4, 3.0, True, "3", Hostile()]),
    (K.EQUALS, True, [True], [1, False]),
    (K.EQUALS, None, [None], [0]),
    (K.EQUALS, "a", ["a"], ["b", b"a", Hostile()]),
    (K.EQUALS, 0.0, [0.0], [-0.0, 0, math.nan]),
    (K.EQUALS, -0.0, [-0.0], [0.0]),
    (K.EQUALS, math.nan, [math.nan, -math.nan, float("nan")], [0.0]),
    (K.EQUALS, math.inf, [math.inf], [-math.inf]),
    (K.EQUALS, 1 + 0j, [1 + 0j], [complex(1, -0.0), 1.0, 2j]),
    (K.EQUALS, (1, ("a", 2.0)), [(1, ("a", 2.0))], [(1, ("a", 2)), (1, ("a",)), [1, ("a", 2.0)], (1, Hostile())]),
    (K.EQUALS, torch.device("cpu"), [torch.device("cpu")], [torch.device("meta")]),
    (K.EQUALS, range(3), [range(3)], [range(4)]),
    (K.LENGTH, 2, [[1, 2], (1, 2), {1: 2, 3: 4}], [[1], []]),
    (K.DICT_KEYS, ("a", "b"), [{"a": 1, "b": 2}], [{"b": 1, "a": 2}, {"a": 1}, {}]),
    (K.DICT_KEYS, (1, ("k", 2)), [{1: 0, ("k", 2): 0}], [{True: 0, ("k", 2): 0}, {1.0: 0, ("k", 2): 0}]),
    (K.DICT_KEYS, (), [{}], [{"a": 1}]),
    (K.HAS_KEY, "a", [{"a": 1}], [{}, {"b": 1}]),
    (K.MISSING_KEY, "a", [{}, {"b": 1}], [{"a": 1}]),
    (K.SET_ITEMS, frozenset({1, "a"}), [{1, "a"}, {"a", 1}], [{1}, {True, "a"}, {1, "a", 2}]),
    (K.MISSING_ATTR, "gone", [_instance(), _instance(a=1)], [_instance(gone=1)]),
    (K.MISSING_ATTR, "shared", [], [_instance(), Base()]),
    (K.NO_INSTANCE_ATTR, "shared", [_instance()], [_instance(shared=3)]),
    (K.SLOT_EMPTY, "slot", [Slotted()], [_slotted(3)]),
    (K.CELL_EMPTY, None, [EMPTY], [types.CellType(3)]),
]


@pytest.mark.parametrize(
    ("kind", "expected", "good", "bad"), CASES, ids=[f"{k} {case[0].value.name}" for k, case in enumerate(CASES)]
)
def test_a_guard_holds_for_these_and_fails_for_those(
    kind: GuardKind, expected: Any, good: list[Any], bad: list[Any]
) -> None:
    guard = Guard(X, kind, expected)
    assert [value for value in good if not _holds(guard, x=value)] == []
    assert [position for position, value in enumerate(bad) if _holds(guard, x=value)] == []
    # The same below another value, where the read is shared.
    below = Guard(Item(X, 0), kind, expected)
    assert all(_holds(below, x=[value]) for value in good)
    assert not any(_holds(below, x=[value]) for value in bad)


def test_overrides_of_container_subclasses_do_not_run() -> None:
    made = HostileList()
    list.extend(made, [1, 2])
    assert _holds([Guard(X, K.TYPE, HostileList), Guard(X, K.LENGTH, 2)], x=made)
    assert not _holds([Guard(X, K.TYPE, HostileList), Guard(X, K.LENGTH, 3)], x=made)
    mapping = HostileDict()
    dict.update(mapping, {"a": 1, "b": 2})
    is_type = Guard(X, K.TYPE, HostileDict)
    assert _holds([is_type, Guard(X, K.DICT_KEYS, ("a", "b"))], x=mapping)
    assert _holds([is_type, Guard(X, K.HAS_KEY, "a"), Guard(X, K.MISSING_KEY, "c")], x=mapping)
    assert not _holds([is_type, Guard(X, K.HAS_KEY, "c")], x=mapping)
    assert not _holds([is_type, Guard(X, K.MISSING_KEY, "a")], x=mapping)


def test_ordered_dict_keys_come_in_its_own_order() -> None:
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    guards = [Guard(X, K.TYPE, collections.OrderedDict), Guard(X, K.DICT_KEYS, ("b", "a"))]
    assert _holds(guards, x=ordered)


def test_objects_without_dictionary_have_no_instance_attributes() -> None:
    guards = [Guard(X, K.TYPE, Slots), Guard(X, K.NO_INSTANCE_ATTR, "a"), Guard(X, K.MISSING_ATTR, "b")]
    assert _holds(guards, x=Slots())


def test_class_attribute_notices_a_new_value_and_a_nearer_class() -> None:
    class Parent:
        rate = 1

        def step(self) -> int:
            return 1

    class Child(Parent):
        pass

    step = Parent.__dict__["step"]
    for context in ([Guard(X, K.TYPE, Child)], []):
        guards = [*context, Guard(TypeOf(X), K.CLASS_ATTR, ("step", step)), Guard(TypeOf(X), K.CLASS_ATTR, ("rate", 1))]
        condition = write_condition(guards, ("x",))

        def holds(condition: Any = condition) -> bool:
            return bool(eval(condition.text, dict(condition.namespace), {"x": Child()}))

        assert holds()
        Parent.step = lambda self: 2  # type: ignore[method-assign]
        assert not holds()
        Parent.step = step  # type: ignore[method-assign]
        assert holds()
        Child.step = lambda self: 3  # type: ignore[method-assign]
        assert not holds()
        del Child.step
        Child.rate = 2
        assert not holds()
        del Child.rate


def test_class_attribute_of_constant_and_argument_classes() -> None:
    expected = ("method", Base.__dict__["method"])
    assert _holds(Guard(Constant(Derived, "Derived"), K.CLASS_ATTR, expected))
    assert _holds([Guard(X, K.IDENTITY, Derived), Guard(X, K.CLASS_ATTR, expected)], x=Derived)
    assert not _holds(Guard(X, K.CLASS_ATTR, expected), x=int)


def test_same_and_distinct_objects() -> None:
    a, b, c = [1], [1], [1]
    same = Guard(X, K.SAME_OBJECT, Local("y"))
    assert _holds(same, x=a, y=a)
    assert not _holds(same, x=a, y=b)
    two = Guard(X, K.DISTINCT_OBJECTS, (Local("y"),))
    assert _holds(two, x=a, y=b)
    assert not _holds(two, x=a, y=a)
    three = Guard(X, K.DISTINCT_OBJECTS, (Item(Local("y"), 0), Item(Local("y"), 1)))
    assert _holds(three, x=a, y=[b, c])
    assert not _holds(three, x=a, y=[b, b])
    assert not _holds(three, x=a, y=[b, a])


def test_an_identity_guard_on_a_dead_object_never_holds() -> None:
    def made() -> None: ...

    condition = write_condition([Guard(X, K.IDENTITY, made)], ("x",))
    assert eval(condition.text, condition.namespace, {"x": made})
    assert all(reference() is not None for reference in condition.watched)
    del made
    assert [reference() for reference in condition.watched] == [None]
    assert not eval(condition.text, condition.namespace, {"x": None})


def test_a_missing_value_is_not_what_was_expected() -> None:
    assert not _holds(Guard(InstanceAttr(X, "gone"), K.EQUALS, 3), x=Base())
    assert not _holds(Guard(Item(X, 5), K.EQUALS, 3), x=[1])


def test_names_and_bases_of_a_class() -> None:
    class Other(Base): ...

    class Changing(Base):
        a = 1

    guard = Guard(Constant(Changing, "Changing"), K.CLASS_NAMES, (tuple(vars(Changing)), Changing.__bases__))
    assert _holds(guard)
    Changing.a = 2
    assert _holds(guard)
    Changing.b = 1  # type: ignore[attr-defined]
    assert not _holds(guard)
    del Changing.b  # type: ignore[attr-defined]
    assert _holds(guard)
    Changing.__bases__ = (Other,)
    assert not _holds(guard)


def test_guards_are_equal_by_content_and_hash_without_hashing_what_they_expect() -> None:
    first = Guard(Item(Local("x"), 0), GuardKind.EQUALS, [1, 2])
    assert first == Guard(Item(Local("x"), 0), GuardKind.EQUALS, [1, 2])
    assert hash(first) == hash(Guard(Item(Local("x"), 0), GuardKind.EQUALS, [3]))
    assert first != Guard(Item(Local("x"), 0), GuardKind.EQUALS, [3])


def test_every_kind_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guards.md").read_text(encoding="utf-8")
    headings = "".join(re.findall(r"^### (.*)$", page, flags=re.MULTILINE))
    assert [kind.value.name for kind in GuardKind if kind.value.name not in headings] == []
