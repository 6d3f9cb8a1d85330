"""Tests of minidynamo/autograd/trace/leaf_order.py: hooks of leaves run in the order of eager."""

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.autograd.trace.leaf_order import edge_order


class Fan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *values):
        return values[0].detach().clone()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient,) * len(ctx.needs_input_grad)


@pytest.mark.parametrize("more", [0, 1])
def test_autograd_takes_leaves_in_the_order_that_their_edges_are_for(more):
    for count in range(1, 40):
        leaves, seen = [torch.ones(1, requires_grad=True) for _ in range(count)], []
        for number, leaf in enumerate(leaves):
            leaf.register_hook(lambda _, number=number, seen=seen: seen.append(number))
        values = [*leaves, *(torch.ones(1, requires_grad=True) * 1 for _ in range(more))]
        wanted, is_leaf = [*reversed(range(count))], dict.fromkeys(range(count), True) | {count: False}
        Fan.apply(*(values[place] for place in edge_order(wanted, range(count + more), is_leaf))).backward()
        assert seen == wanted


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2))


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("make", [perceptron, convolutions])
@pytest.mark.parametrize("data", ["leaf", "inner", "constant"])
def test_hooks_of_parameters_run_in_the_order_of_eager(make, data, backend):
    seen = {}
    for name, compiled in (("eager", False), ("compiled", True)):
        model, order = make(), []
        call = minidynamo.compile(lambda x, model=model: model(x), backend=backend) if compiled else model
        for key, parameter in model.named_parameters():
            parameter.register_hook(lambda _, key=key, order=order: order.append(key))
            parameter.register_post_accumulate_grad_hook(lambda _, key=key, order=order: order.append(f"{key} added"))
        x = torch.ones(5, 3, requires_grad=data != "constant")
        for _ in range(2):  # the second time `.grad` exists
            call(x if data != "inner" else x * 2).sin().sum().backward()
        seen[name] = order
    assert seen["compiled"] == seen["eager"]


def test_arguments_in_the_order_of_their_last_uses():
    def program(a, b, c, d, e):
        return ((((a * b).sin() * c).cos() * d).exp() * e).sum()

    seen = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        leaves, order = [torch.ones(3, requires_grad=True) for _ in range(5)], []
        for number, leaf in enumerate(leaves):
            leaf.register_hook(lambda _, number=number, order=order: order.append(number))
        call(*leaves).backward()
        seen.append(order)
    assert seen[0] == seen[1]
