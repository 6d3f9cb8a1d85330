"""A custom autograd Function is one node in the graph; its own operations are traced for the guards alone."""

from __future__ import annotations

import warnings

import torch

import minidynamo
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
