"""Rebuilt objects equal the program's, and each object is built once."""

import builtins
import collections
import enum
import types
from typing import NamedTuple

import pytest
import torch

from minidynamo.core.names import Namespace
from minidynamo.errors import InternalError
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, spelling
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable, SliceVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable
from tests.tracer.reconstruct.rebuilt import C, key, rebuilt


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: int


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
        (DictVariable({key("a"): C(1), key(2): C(None)}), {"a": 1, 2: None}),
        (DictVariable({key("a"): C(1)}, collections.OrderedDict), collections.OrderedDict(a=1)),
        (DictVariable({key("a"): C(1)}, types.MappingProxyType), types.MappingProxyType({"a": 1})),
        (SetVariable({}), set()),
        (SetVariable({}, frozenset), frozenset()),
        (SliceVariable(C(1), C(None), C(2)), slice(1, None, 2)),
        (BuiltinVariable(len), len),
        (BuiltinVariable(torch.relu), torch.relu),
        (BuiltinVariable(torch.Tensor.add), torch.Tensor.add),
        (ClassVariable(Color), Color),
        (ClassVariable(torch.nn.Linear), torch.nn.Linear),
        (PythonModuleVariable(types), types),
        (FunctionVariable(key), key),
    ],
)
def test_plain_values(variable: VariableTracker, expected: object) -> None:
    made = rebuilt(variable)
    assert made == expected
    assert type(made) is type(expected)
    # Once more, with two references.
    assert rebuilt(TupleVariable([variable, variable])) == (expected, expected)


def test_objects_of_libraries_are_bound_to_names_not_read_from_their_modules() -> None:
    names = Namespace()
    rebuild = Rebuilder(names, SideEffects(), {}, ())
    for variable, name in (
        (BuiltinVariable(torch.relu), "relu"),
        (FunctionVariable(torch.nn.functional.softmax), "softmax"),
        (C(torch.bfloat16), "bfloat16"),
        (FunctionVariable(key), "key"),
    ):
        assert rebuild.value(variable) == name
        assert names.values[name] is variable.value


def test_builtins_are_bound_where_the_program_replaces_one() -> None:
    names, effects = Namespace(), SideEffects()
    assert Rebuilder(names, effects, {}, ()).value(BuiltinVariable(len)) == "len"
    effects.set_global(vars(builtins), "len", C(3))
    name = Rebuilder(names, effects, {}, ()).value(BuiltinVariable(len))
    assert names.values[name] is len


def test_recursive_structures() -> None:
    items = ListVariable([C(1)])
    items.items.append(items)
    made = rebuilt(items)
    assert made[0] == 1
    assert made[1] is made

    mapping = DictVariable({})
    group = TupleVariable([mapping, C(2)])
    mapping.items[key("self")] = group
    first = rebuilt(group)
    assert first[0]["self"] is first

    left, right, crossing = ListVariable([]), ListVariable([]), TupleVariable([])
    crossing.items += [left, right]
    left.items.append(TupleVariable([crossing]))
    right.items.append(left.items[0])
    made = rebuilt(crossing)
    assert made[0][0][0] is made
    assert made[1][0] is made[0][0]


@pytest.mark.parametrize(
    "variable", [OpaqueVariable(object()), ObjectVariable(object(), object)], ids=["opaque", "existing object"]
)
def test_what_cannot_be_rebuilt_is_refused(variable: VariableTracker) -> None:
    with pytest.raises(InternalError, match="cannot be rebuilt"):
        rebuilt(variable)


@pytest.mark.parametrize("value", [None, True, 1000, -1000, 2.5, "a b", b"a", (1, (2.5, "x")), (), (1,)], ids=repr)
def test_literals_have_the_value(value):
    spelled = spelling(value)
    assert spelled is not None and eval(spelled) == value


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2j, 1 << 20_000, (1, 2j), [1]], ids=lambda v: str(type(v))
)
def test_no_literal(value):
    assert spelling(value) is None
