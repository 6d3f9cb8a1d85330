import enum

import pytest
import torch

from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant, is_constant_value, key_of
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import ListVariable, SliceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable

Level = enum.Enum("Level", "LOW HIGH")

VALUES = [1, 2.5, "a", None, True, (1, ("b",)), [1, [2]], {"a": 1, (1, 2): [3]}, {1, 2}, frozenset({3}), slice(1, None)]
VALUES += [torch.float32, torch.device("cpu"), torch.Size([1, 2]), range(3), Level.LOW, int]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_there_and_back(value):
    back = as_constant(from_constant(value))
    assert back == value and type(back) is type(value)


def test_what_is_not_constant():
    opaque = OpaqueVariable(object())
    for variable in (opaque, ListVariable([opaque]), SliceVariable(opaque, opaque, opaque)):
        with pytest.raises(NotConstant):
            as_constant(variable)
    with pytest.raises(NotConstant):
        from_constant(object())
    assert not is_constant_value((1, 2)) and not is_constant_value(slice([1]))


def test_keys_compare_as_python_compares_them():
    assert key_of(ConstantVariable(1)) == key_of(ConstantVariable(True))
    assert key_of(TupleVariable([ConstantVariable("a")])) == key_of(from_constant(("a",)))
    opaque = OpaqueVariable(object())
    assert key_of(opaque) == key_of(opaque) != key_of(OpaqueVariable(object()))
    with pytest.raises(NotConstant, match="list"):
        key_of(TupleVariable([ListVariable([])]))
