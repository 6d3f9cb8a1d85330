"""Objects are created and filled without running code of their class."""

import collections

from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.containers import DictKey, DictVariable, ListVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable
from tests.tracer.reconstruct.rebuilt import C, Loud, LoudList, key, rebuilt


class Slotted:
    __slots__ = ("a",)


class LoudOrdered(collections.OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError("user code ran")


class Point(tuple):  # type: ignore[type-arg]
    def __new__(cls) -> "Point":
        raise AssertionError("user code ran")


class Failed(Exception):
    def __init__(self) -> None:
        raise AssertionError("user code ran")


def test_objects_are_made_without_running_their_class() -> None:
    effects = SideEffects()
    loud = ObjectVariable(None, Loud)
    effects.set_attr(loud, "a", C(1))
    effects.set_attr(loud, "a", C(2))
    effects.set_attr(loud, "gone", C(3))
    effects.delete_attr(loud, "gone")
    effects.set_attr(loud, "me", loud)
    made = rebuilt(loud, effects=effects)
    assert type(made) is Loud
    assert made.__dict__ == {"a": 2, "me": made}


def test_slots_and_exceptions_are_set_as_attributes() -> None:
    effects = SideEffects()
    slotted, failed = ObjectVariable(None, Slotted), ObjectVariable(None, Failed)
    effects.set_attr(slotted, "a", C(1))
    effects.set_attr(failed, "args", TupleVariable([C("text")]))
    first, second = rebuilt(slotted, failed, effects=effects)
    assert first.a == 1
    assert type(second) is Failed
    assert second.args == ("text",)


def test_container_subclasses_are_filled_through_their_base() -> None:
    made = rebuilt(ObjectVariable(None, LoudList, ListVariable([C(1), C(2)], LoudList)))
    assert type(made) is LoudList
    assert list(made) == [1, 2]
    mapping = rebuilt(ObjectVariable(None, LoudOrdered, DictVariable({key("a"): C(1)}, LoudOrdered)))
    assert type(mapping) is LoudOrdered
    assert dict(mapping) == {"a": 1}
    point = rebuilt(ObjectVariable(None, Point, TupleVariable([C(1), C(2)], Point)))
    assert type(point) is Point
    assert tuple(point) == (1, 2)


def test_attributes_are_there_when_an_object_is_hashed() -> None:
    class Keyed:
        def __hash__(self) -> int:
            return hash(self.key)  # type: ignore[attr-defined,no-any-return]

    effects = SideEffects()
    key = ObjectVariable(None, Keyed)
    effects.set_attr(key, "key", C(5))
    made = rebuilt(DictVariable({DictKey(id(key), key): C("found")}), effects=effects)
    (found,) = made
    assert found.key == 5
