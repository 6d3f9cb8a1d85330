"""Tests of minidynamo/codegen/lowering/registry.py: the table of lowerings, and chains of views as changes of
coordinates."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

from minidynamo.codegen.ir.index import as_index
from minidynamo.codegen.ir.loops import Buffer
from minidynamo.codegen.lowering import registry
from minidynamo.codegen.lowering.pointwise import lower_row
from minidynamo.codegen.lowering.registry import Value, dimensions

BUFFER = Buffer("x", (2, 3, 4), (12, 4, 1), torch.float32, torch.device("cpu"))


def text(value: Value) -> list[str]:
    return [str(i) for i in value.index]


def test_whole():
    value = Value.whole(BUFFER)
    assert value.is_whole and text(value) == ["d0", "d1", "d2"]


def test_reshape_there_and_back_is_the_same():
    value = Value.whole(BUFFER)
    assert value.reshape((6, 4)).reshape((2, 3, 4)) == value
    assert value.reshape((24,)).reshape((2, 3, 4)) == value
    assert value.reshape((2, 1, 12)).reshape((2, 3, 4)) == value
    assert not value.reshape((6, 4)).is_whole


def test_reshape_splits_and_joins_coordinates():
    assert text(Value.whole(BUFFER).reshape((2, 12))) == ["d0", "(d1 // 4)", "(d1 % 4)"]


def test_broadcast_load():
    row = Value.whole(Buffer("b", (1, 4), (4, 1), torch.float32, torch.device("cpu")))
    at = [as_index(v) for v in dimensions((2, 3, 4), "i")]
    assert [str(i) for i in row.broadcast_load(at).index] == ["0", "i2"]
    scalar = Value.whole(Buffer("s", (), (), torch.float32, torch.device("cpu")))
    assert scalar.broadcast_load(at).index == ()


aten = torch.ops.aten


def test_find_is_by_name_without_overload():
    assert registry.find(aten.add.Tensor) is registry.find(aten.add.Scalar) is not None
    assert registry.find(aten.bmm.default) is None
    assert registry.find(torch.add) is None


def test_views_are_marked():
    assert registry.is_view(aten.permute.default)
    assert not registry.is_view(aten.add.Tensor)
    assert not registry.is_view(torch.permute)


def test_lowered_ops_are_overloads():
    ops = registry.lowered_ops()
    assert {aten.add.Tensor, aten._softmax.default, aten.native_layer_norm.default} <= ops
    assert aten.convolution.default not in ops


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="two lowerings"):
        registry.add("add", registry.LOWERINGS["sub"])


def test_lowered_ops_knows_every_name():
    names = {registry.base_name(op) for op in registry.lowered_ops()}
    assert names == set(registry.LOWERINGS)
    assert torch.ops.prims.iota.default in registry.lowered_ops()


def signature(op):
    """Returns the signature of the Python function that implements a lowering, and the number of its parameters before
    the arguments of the call."""
    function = registry.find(op)
    if isinstance(function, functools.partial) and function.func is lower_row:
        return inspect.signature(function.args[0].formula), 0
    return inspect.signature(function), 1


def is_functional(op):
    """True if a graph can hold `op`: its arguments and results have no named dimensions, and no argument is written."""
    made = [str(result.type) for result in op._schema.returns]
    written = any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)
    named = "dimname" in op._overloadname.lower()
    return "Tensor" in made and not (written or named) and "Tensor" in str(op._schema.arguments[0].type)


def test_lowerings_take_the_arguments_of_every_overload():
    ops = [op for op in registry.lowered_ops() if is_functional(op)]
    assert len(ops) > 200
    for op in ops:
        for given in (op._schema.arguments, [a for a in op._schema.arguments if not a.has_default_value()]):
            bound, front = signature(op)
            positional = [None] * (front + sum(not a.kwarg_only for a in given))
            bound.bind(*positional, **{a.name: None for a in given if a.kwarg_only})
