"""Which classes derived from torch's tensors a graph takes, and which of them decide calls themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.records.tensor_classes import is_tensor_class, overrides_functions, special_kind

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


def inference_tensor():
    with torch.inference_mode():
        return torch.ones(2)


@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda: torch.ones(2), ""),
        (lambda: nn.Parameter(torch.ones(2)), ""),
        (lambda: torch.ones(2).to_sparse(), "sparse tensor"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "conjugate view"),
        (inference_tensor, "tensor from inference mode"),
    ],
)
def test_the_kind_of_a_tensor_is_named(make, kind):
    assert special_kind(make()) == kind


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: (x - w).relu() @ w,
        lambda x, w: (w.view(4), w.t(), x.add_(w)),
        lambda x, w: (w, w.is_inference(), (w + 1).is_inference(), w.detach().is_inference()),
        lambda x, w: torch.add(x, w, out=x),
    ],
)
def test_an_inference_tensor_is_an_input_while_no_gradients_are_computed(program, backend):
    def make():
        with torch.inference_mode():
            return torch.arange(4.0).view(2, 2), torch.ones(2, 2)

    weight, _ = make()
    with torch.no_grad():
        run = lambda x: program(x, weight)  # noqa: E731
        assert_same_as_eager(run, lambda: (torch.ones(2, 2),), backend=backend, backward=False, graphs=None, breaks=0)


def test_an_inference_tensor_among_gradients_ends_the_graph_with_a_hint():
    weight, x = inference_tensor(), torch.ones(2, requires_grad=True)
    f = minidynamo.compile(lambda x: x + weight, backend="eager")
    assert torch.equal(f(x), x + weight)
    assert "tensor from inference mode" in str(f.breaks()) and "torch.no_grad()" in str(f.breaks())


def test_an_inference_tensor_cannot_be_written():
    weight = inference_tensor()
    with torch.no_grad():
        assert_same_as_eager(lambda x: weight.add_(x), lambda: (torch.ones(2),), backend="aot_eager", backward=False)
