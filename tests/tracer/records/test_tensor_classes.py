"""Which classes derived from torch's tensors a graph takes, and which of them decide calls themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minidynamo.tracer.records.tensor_classes import is_tensor_class, overrides_functions

DISABLED = torch._C._disabled_torch_function_impl


def class_of(base=nn.Parameter, **attributes):
    return type(base)("Some", (base,), attributes)


def method(*args):
    raise AssertionError("never called")


@pytest.mark.parametrize(
    "attributes, is_taken",
    [
        ({}, True),
        ({"scale": 2, "note": "text", "doubled": method, "__repr__": method, "__deepcopy__": method}, True),
        ({"halved": property(method), "of": classmethod(method), "__torch_function__": classmethod(method)}, True),
        ({"__new__": staticmethod(method), "__getstate__": method, "__doc__": "text"}, True),
        ({"__add__": method}, False),
        ({"__getattr__": method}, False),
        ({"__getattribute__": method}, False),
        ({"__torch_dispatch__": classmethod(method)}, False),
        ({"__tensor_flatten__": method}, False),
        ({"__slots__": ("extra",)}, False),
    ],
)
def test_a_graph_takes_classes_without_special_methods(attributes, is_taken):
    assert is_tensor_class(class_of(**attributes)) is is_taken
    assert is_tensor_class(class_of(class_of(**attributes))) is is_taken


@pytest.mark.parametrize(
    "cls, overrides",
    [
        (torch.Tensor, False),
        (nn.Parameter, False),
        (class_of(), False),
        (class_of(torch.Tensor), True),
        (class_of(torch.Tensor, __torch_function__=DISABLED), False),
        (class_of(class_of(torch.Tensor, __torch_function__=DISABLED)), False),
        (class_of(__torch_function__=classmethod(method)), True),
    ],
)
def test_a_class_decides_calls_unless_its_method_is_disabled(cls, overrides):
    assert overrides_functions(cls) is overrides
