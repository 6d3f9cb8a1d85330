"""A custom autograd Function is one node in the graph; its own operations are traced for the guards alone."""

from __future__ import annotations

import warnings

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.handlers.custom_functions import Context
from tests.tracer.capturing import capture, guards_on, targets


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, gradient):
        return gradient * FACTOR


FACTOR = 2.0


def test_one_node_and_no_trace_of_the_trial():
    traced = capture(lambda x: Doubled.apply(x), torch.randn(2, requires_grad=True))
    (target,) = targets(traced)
    assert target.__name__ == "Doubled_apply"
    assert guards_on(traced, "FACTOR")


class Tripled(Doubled):
    @staticmethod
    def forward(ctx, x):
        return x * 3


def test_an_instance_applies_its_class():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch warns of instances
        doubled, tripled = Doubled(), Tripled()
    compiled = minidynamo.compile(lambda op, x: op.apply(x), backend="eager", fullgraph=True)
    x = torch.randn(2, requires_grad=True)
    assert torch.equal(compiled(doubled, x), x * 2) and torch.equal(compiled(tripled, x), x * 3)
    compiled(tripled, x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_the_stand_in_for_ctx_has_what_functions_use():
    ctx = Context((True, False))
    ctx.save_for_backward(1, 2)
    ctx.save_for_forward(1)
    ctx.mark_dirty(1)
    ctx.mark_non_differentiable(1)
    ctx.set_materialize_grads(False)
    assert ctx.saved_tensors == (1, 2) and ctx.needs_input_grad == (True, False)
    public = {name for name in dir(torch.autograd.function.FunctionCtx) if not name.startswith("_")}
    assert public <= {*dir(ctx), "mark_shared_storage"}


class Product(torch.autograd.Function):
    """Calls the method of a layer, as the quantized layers of hqq do."""

    @staticmethod
    def forward(ctx, x, product):
        ctx.product = product
        return product(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.product(grad, transpose=True), None


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(16.0).view(4, 4))

    def product(self, x, transpose=False):
        return x @ (self.weight.t() if transpose else self.weight)

    def forward(self, x):
        return Product.apply(x, self.product) * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_method_of_a_module_is_an_argument(backend):
    make = lambda: (Layer(), torch.ones(2, 4, requires_grad=True))  # noqa: E731
    assert_same_as_eager(lambda layer, x: layer(x), make, backend=backend, graphs=1, breaks=0)


def test_another_method_is_noticed():
    layer, x = Layer(), torch.ones(2, 4)
    f = minidynamo.compile(layer, backend="aot_eager")
    assert torch.equal(f(x), x @ layer.weight * 2)
    layer.weight.mul_(2)
    assert torch.equal(f(x), x @ layer.weight * 2)
    layer.product = lambda x, transpose=False: x * 3
    assert torch.equal(f(x), x * 6)
