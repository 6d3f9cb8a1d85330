"""Tests of minidynamo/tracer/reconstruct.py: what is built equals what the program made."""

import collections
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from minidynamo.errors import InternalError
from minidynamo.guards.source import Local
from minidynamo.names import Namespace
from minidynamo.tracer.reconstruct import Rebuilder, advance, refill
from minidynamo.tracer.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
    SuperVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    DictViewVariable,
    ListVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable
from minidynamo.variables.iterators import EnumerateIterator, MapIterator, SequenceIterator, ZipIterator
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable

C = ConstantVariable


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: int


class Loud:
    """Nothing but the attributes may be touched."""

    def __init__(self) -> None:
        raise AssertionError("user code ran")

    def __new__(cls) -> "Loud":
        raise AssertionError("user code ran")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("user code ran")


class Slotted:
    __slots__ = ("a",)


class LoudList(list):  # type: ignore[type-arg]
    def __init__(self) -> None:
        raise AssertionError("user code ran")

    def extend(self, items: object) -> None:
        raise AssertionError("user code ran")


class LoudOrdered(collections.OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError("user code ran")


class Point(tuple):  # type: ignore[type-arg]
    def __new__(cls) -> "Point":
        raise AssertionError("user code ran")


class Failed(Exception):
    def __init__(self) -> None:
        raise AssertionError("user code ran")


def _key(value: Any) -> DictKey:
    return DictKey(value, C(value))


def _run(*roots: VariableTracker, effects: SideEffects | None = None, **outside: Any) -> Any:
    """Print and execute the statements for the roots; outside values are found by their Local sources."""
    names = Namespace(outside)
    rebuild = Rebuilder(names, effects or SideEffects(), _known(roots), roots)
    texts = [rebuild.value(root) for root in roots]
    lines = [*rebuild.lines, *rebuild.late, *rebuild.entering, f"result = ({', '.join(texts)},)"]
    local_variables = dict(outside)
    exec("\n".join(lines), dict(names.values), local_variables)
    result = local_variables["result"]
    return result[0] if len(roots) == 1 else result


def _known(roots: Any) -> dict[VariableTracker, str]:
    return {variable: variable.source.name for variable in OUTSIDE}


XS = ListVariable([C(1), C(2), C(3)], source=Local("xs"))
OUTSIDE: list[Any] = [XS]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (C(3), 3),
        (C(float("inf")), float("inf")),
        (C("it's"), "it's"),
        (C(b"x"), b"x"),
        (C(...), ...),
        (C(2j), 2j),
        (C((1, ("a", None))), (1, ("a", None))),
        (C(torch.float32), torch.float32),
        (C(torch.device("cpu")), torch.device("cpu")),
        (C(Color.RED), Color.RED),
        (C(range(3)), range(3)),
        (C(slice(1, None)), slice(1, None)),
        (C(torch.strided), torch.strided),
        (ListVariable([C(1), C(2)]), [1, 2]),
        (ListVariable([]), []),
        (ListVariable([C(1)], collections.deque), collections.deque([1])),
        (TupleVariable([C(1)]), (1,)),
        (TupleVariable([]), ()),
        (TupleVariable([C(1), C(2)], torch.Size), torch.Size([1, 2])),
        (TupleVariable([C(1), C(2)], Pair), Pair(1, 2)),
        (TupleVariable([C(1), C(2)], torch.return_types.max), torch.return_types.max((1, 2))),
        (DictVariable({_key("a"): C(1), _key(2): C(None)}), {"a": 1, 2: None}),
        (DictVariable({_key("a"): C(1)}, collections.OrderedDict), collections.OrderedDict(a=1)),
        (DictVariable({_key("a"): C(1)}, types.MappingProxyType), types.MappingProxyType({"a": 1})),
        (SetVariable({_key(1): None, _key(2): None}), {1, 2}),
        (SetVariable({}), set()),
        (SetVariable({_key(1): None}, frozenset), frozenset([1])),
        (SliceVariable(C(1), C(None), C(2)), slice(1, None, 2)),
        (BuiltinVariable(len), len),
        (BuiltinVariable(torch.relu), torch.relu),
        (BuiltinVariable(torch.Tensor.add), torch.Tensor.add),
        (ClassVariable(Color), Color),
        (ClassVariable(torch.nn.Linear), torch.nn.Linear),
        (PythonModuleVariable(types), types),
        (FunctionVariable(_key), _key),
    ],
)
def test_plain_values(variable: VariableTracker, expected: object) -> None:
    made = _run(variable)
    assert made == expected
    assert type(made) is type(expected)
    # Once more, referred to twice.
    assert _run(TupleVariable([variable, variable])) == (expected, expected)


def test_defaultdicts_keep_their_factory() -> None:
    made = _run(DictVariable({_key("a"): C(1)}, collections.defaultdict, BuiltinVariable(list)))
    assert made == {"a": 1}
    assert made["b"] == []
    assert _run(DictVariable({}, collections.defaultdict)).default_factory is None


def test_what_is_known_of_torch_has_its_readable_name() -> None:
    rebuild = Rebuilder(Namespace(), SideEffects(), {}, ())
    assert rebuild.value(BuiltinVariable(torch.relu)) == "torch.relu"
    assert rebuild.value(FunctionVariable(torch.nn.functional.softmax)) == "torch.nn.functional.softmax"
    assert rebuild.value(C(torch.bfloat16)) == "torch.bfloat16"
    assert rebuild.value(FunctionVariable(_key)) == "key"


def test_an_object_that_is_referred_to_twice_is_built_once() -> None:
    shared = ListVariable([C(1)])
    first, second = _run(TupleVariable([shared, shared]))
    assert first is second
    a, b = _run(shared, ListVariable([shared]))
    assert b[0] is a


def test_recursive_structures() -> None:
    items = ListVariable([C(1)])
    items.items.append(items)
    made = _run(items)
    assert made[0] == 1
    assert made[1] is made

    mapping = DictVariable({})
    group = TupleVariable([mapping, C(2)])
    mapping.items[_key("self")] = group
    first = _run(group)
    assert first[0]["self"] is first

    left, right, crossing = ListVariable([]), ListVariable([]), TupleVariable([])
    crossing.items += [left, right]
    left.items.append(TupleVariable([crossing]))
    right.items.append(left.items[0])
    made = _run(crossing)
    assert made[0][0][0] is made
    assert made[1][0] is made[0][0]


def test_objects_are_made_without_running_their_class() -> None:
    effects = SideEffects()
    loud = ObjectVariable(None, Loud)
    effects.set_attr(loud, "a", C(1))
    effects.set_attr(loud, "a", C(2))
    effects.set_attr(loud, "gone", C(3))
    effects.delete_attr(loud, "gone")
    effects.set_attr(loud, "me", loud)
    made = _run(loud, effects=effects)
    assert type(made) is Loud
    assert made.__dict__ == {"a": 2, "me": made}


def test_slots_and_exceptions_are_set_as_attributes() -> None:
    effects = SideEffects()
    slotted, failed = ObjectVariable(None, Slotted), ObjectVariable(None, Failed)
    effects.set_attr(slotted, "a", C(1))
    effects.set_attr(failed, "args", TupleVariable([C("text")]))
    first, second = _run(slotted, failed, effects=effects)
    assert first.a == 1
    assert type(second) is Failed
    assert second.args == ("text",)


def test_container_subclasses_are_filled_through_their_base() -> None:
    made = _run(ObjectVariable(None, LoudList, ListVariable([C(1), C(2)], LoudList)))
    assert type(made) is LoudList
    assert list(made) == [1, 2]
    mapping = _run(ObjectVariable(None, LoudOrdered, DictVariable({_key("a"): C(1)}, LoudOrdered)))
    assert type(mapping) is LoudOrdered
    assert dict(mapping) == {"a": 1}
    point = _run(ObjectVariable(None, Point, TupleVariable([C(1), C(2)], Point)))
    assert type(point) is Point
    assert tuple(point) == (1, 2)


def test_attributes_are_there_when_an_object_is_hashed() -> None:
    class Keyed:
        def __hash__(self) -> int:
            return hash(self.key)  # type: ignore[attr-defined,no-any-return]

    effects = SideEffects()
    key = ObjectVariable(None, Keyed)
    effects.set_attr(key, "key", C(5))
    made = _run(DictVariable({DictKey(id(key), key): C("found")}), effects=effects)
    (found,) = made
    assert found.key == 5


# Functions


def _nested(function: Any, **facts: Any) -> NestedFunctionVariable:
    return NestedFunctionVariable(function.__code__, globals(), function.__qualname__, **facts)


def test_nested_functions_with_defaults_closures_and_names() -> None:
    total = 0

    def add(x: int, y: int = 0, *, z: int = 0) -> int:
        nonlocal total
        total += x + y + z
        return total

    cell = CellVariable(C(100))
    variable = _nested(
        add,
        defaults=TupleVariable([C(10)]),
        kwdefaults=DictVariable({_key("z"): C(1)}),
        annotations=TupleVariable([C("x"), ClassVariable(int)]),
        closure=(cell,),
        attributes={"tag": C("t")},
    )
    made = _run(variable)
    assert made(1) == 112
    assert made.__qualname__ == add.__qualname__
    assert made.__annotations__ == {"x": int}
    assert made.tag == "t"
    assert made.__globals__ is globals()
    assert made.__module__ == __name__


def test_functions_share_cells_and_can_call_themselves() -> None:
    def get() -> Any:
        return get, value

    value = 1
    value_cell, get_cell = CellVariable(C(5)), CellVariable()
    closure = {"get": get_cell, "value": value_cell}
    variable = _nested(get, closure=tuple(closure[name] for name in get.__code__.co_freevars))
    get_cell.contents = variable
    function, cell = _run(variable, value_cell)
    assert function() == (function, 5)
    cell.cell_contents = 6
    assert function() == (function, 6)


def test_an_empty_cell_stays_empty() -> None:
    made = _run(CellVariable())
    with pytest.raises(ValueError, match="empty"):
        made.cell_contents  # noqa: B018


def test_a_real_cell_is_itself() -> None:
    cell = types.CellType(3)
    assert _run(CellVariable(None, cell)) is cell


def test_methods_partials_and_super() -> None:
    items = ListVariable([C(3)])
    append, made = _run(BoundBuiltin(items, "append"), items)
    append(4)
    assert made == [3, 4]
    method = _run(MethodVariable(FunctionVariable(_key), C("x")))
    assert method().token == "x"
    partial = _run(PartialVariable(BuiltinVariable(int), TupleVariable([C("11")]), DictVariable({_key("base"): C(2)})))
    assert isinstance(partial, functools.partial)
    assert partial() == 3
    loud = ObjectVariable(None, LoudList, ListVariable([C(1)], LoudList))
    parent, instance = _run(SuperVariable(LoudList, loud), loud)
    parent.extend([2])
    assert list(instance) == [1, 2]


# Iterators


def test_an_iterator_over_a_list_sees_later_changes() -> None:
    items = ListVariable([C(1), C(2), C(3)])
    iterator, made = _run(SequenceIterator(items, 1), items)
    assert next(iterator) == 2
    made.append(4)
    assert list(iterator) == [3, 4]


def test_reversed_iterators_count_down() -> None:
    assert list(_run(SequenceIterator(ListVariable([C(1), C(2), C(3)]), 1, type(reversed([]))))) == [2, 1]


def test_iterators_over_deques_and_fixed_items() -> None:
    deque = ListVariable([C(1), C(2), C(3)], collections.deque)
    assert list(_run(SequenceIterator(deque, 2, type(iter(collections.deque()))))) == [3]
    assert list(_run(SequenceIterator((C(1), C(2), C(3)), 1))) == [2, 3]
    assert list(_run(SequenceIterator((C(1),), 1))) == []


def test_iterators_of_iterators_share_them() -> None:
    inner = SequenceIterator(ListVariable([C(1), C(2), C(3)]), 1)
    assert list(_run(EnumerateIterator(inner, 5))) == [(5, 2), (6, 3)]
    assert list(_run(ZipIterator([inner, inner]))) == [(2, 3)]
    assert list(_run(MapIterator(BuiltinVariable(str), [inner]))) == ["2", "3"]
    keep = MapIterator(BuiltinVariable(bool), [SequenceIterator((C(0), C(1)))], filtering=True)
    assert list(_run(keep)) == [1]
    strict = _run(ZipIterator([SequenceIterator((C(1),)), SequenceIterator(())], strict=True))
    with pytest.raises(ValueError, match="shorter"):
        list(strict)


def test_advance_skips_items() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    assert list(advance(numbers(), 3)) == [3, 4]
    assert list(advance(numbers(), 0)) == [0, 1, 2, 3, 4]


def test_views_are_live() -> None:
    mapping = DictVariable({_key("a"): C(1)})
    view, made = _run(DictViewVariable(mapping, "values"), mapping)
    made["b"] = 2
    assert list(view) == [1, 2]


# Contexts


def test_an_open_context_manager_is_entered_and_its_exit_handed_on() -> None:
    context = ContextVariable(torch.set_grad_enabled, (False,), saved=True)
    try:
        leave = _run(ContextExitVariable(context))
        assert not torch.is_grad_enabled()
        leave(None, None, None)
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_a_context_manager_that_is_not_open_is_only_made() -> None:
    made = _run(ContextVariable(torch.no_grad))
    assert type(made) is torch.no_grad
    assert torch.is_grad_enabled()


# Outside


def test_outside_values_are_named_never_rebuilt() -> None:
    real = [1, 2, 3]
    assert _run(TupleVariable([XS]), xs=real)[0] is real


@pytest.mark.parametrize(
    "variable", [OpaqueVariable(object()), ObjectVariable(object(), object)], ids=["opaque", "existing object"]
)
def test_what_cannot_be_rebuilt_is_refused(variable: VariableTracker) -> None:
    with pytest.raises(InternalError, match="cannot be rebuilt"):
        _run(variable)


@pytest.mark.parametrize(
    ("variable", "before", "after"),
    [
        (ListVariable([C(1)]), [5, 6], [1]),
        (ListVariable([]), [5], []),
        (ListVariable([C(1)], collections.deque), collections.deque([5]), collections.deque([1])),
        (DictVariable({_key("b"): C(1), _key("a"): C(2)}), {"a": 0, "b": 0}, {"b": 1, "a": 2}),
        (DictVariable({}), {"a": 0}, {}),
        (SetVariable({_key(1): None}), {5}, {1}),
        (SetVariable({}), {5}, set()),
    ],
    ids=str,
)
def test_new_contents_replace_the_old_ones_in_place(variable: VariableTracker, before: Any, after: Any) -> None:
    names = Namespace(["target"])
    rebuild = Rebuilder(names, SideEffects(), {}, [variable])
    lines = refill(rebuild, variable, "target")
    exec("\n".join([*rebuild.lines, *lines]), dict(names.values), {"target": before})
    assert before == after
    assert list(before) == list(after)
