"""Tests of minidynamo/autograd/trace/grad_graph_queries.py: zeros and None as in eager, and hooks of leaves in the
order of eager."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.autograd.trace.grad_graph_queries import edge_order

# Each function has a derivative that is always zero.
FLAT = {
    "sgn": torch.sgn,
    "round": torch.round,
    "power": lambda x: x**0,
    "zero": lambda x: x.clone().zero_(),
    "detached": lambda x: x.detach() + 1,
}
PROGRAMS = {
    "alone": lambda flat: lambda x, w: (flat(x), w.cos()),
    "beside": lambda flat: lambda x, w: (flat(x), x.sin(), w.cos()),
    "behind": lambda flat: lambda x, w: (flat(y := x * 2), y.sin(), w.cos()),
    "multiplied": lambda flat: lambda x, w: (flat(x) * w, x * w, w.sin()),
}


def outcome(program, used, *, is_leaf, again):
    x, w = (torch.tensor(values, requires_grad=True) for values in ([0.5, -1.2, 2.3], [0.1, 0.2, 0.3]))
    seen = []
    given = x if is_leaf else x * 2
    if not is_leaf:
        given.register_hook(lambda gradient: seen.append(gradient.detach().clone()))
    results = program(given, w)
    roots = [results[i].sum() for i in used if results[i].requires_grad]
    first = torch.autograd.grad(roots, (x, w), allow_unused=True, create_graph=again) if roots else ()
    second = [gradient.square().sum() for gradient in first if gradient is not None and gradient.requires_grad]
    return seen, first, torch.autograd.grad(sum(second), (x, w), allow_unused=True) if second else ()


CASES = [(flat, name, None) for flat in FLAT for name in PROGRAMS] + [("sgn", "behind", True), ("round", "alone", True)]


@pytest.mark.parametrize(("flat", "name", "dynamic"), CASES)
def test_zeros_and_none(flat, name, dynamic):
    program = PROGRAMS[name](FLAT[flat])
    compiled = minidynamo.compile(program, backend="aot_eager", dynamic=dynamic, fullgraph=True)
    last = 1 if name == "alone" else 2
    for used in ((0,), (1,), (last,)):
        for is_leaf, again in ((True, False), (False, False), (False, True)):
            expected = outcome(program, used, is_leaf=is_leaf, again=again)
            got = outcome(compiled, used, is_leaf=is_leaf, again=again)
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("flat", ["sgn", "power", "round"])
def test_zeros_that_arrive_at_a_result_from_another(flat):
    def program(x):
        y = x * 2
        return y, FLAT[flat](y), y.sin()

    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        for used in ((1,), (2,), (1, 2)):
            x = torch.tensor([0.5, -1.2, 2.3], requires_grad=True)
            results = call(x)
            results[0].retain_grad()
            sum(results[i].sum() for i in used).backward()
            outcomes.append((results[0].grad, x.grad))
    torch.testing.assert_close(outcomes[:3], outcomes[3:])


def one_result(x, w):
    y = x.clone()
    y[1:].add_(w[1:])
    return y


def written_argument(x, w):
    x[1:].add_(w[1:])
    return x.sum()


@pytest.mark.parametrize("program", [one_result, written_argument])
def test_the_function_of_a_written_part_is_used_up(program):
    """Saves nothing, but backward frees the node."""
    for call in (program, minidynamo.compile(program, backend="aot_eager", fullgraph=True)):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        y = x.clone()
        result = call(y, w)
        result.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            (y if program is written_argument else result).sum().backward()


def test_what_is_kept_for_a_written_argument_is_gone_behind_backward():
    def program(x, w):
        x[1:].mul_(w[1:])
        return x.sum()

    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    given = w * 2
    watched = weakref.ref(given)
    total = minidynamo.compile(program, backend="aot_eager", fullgraph=True)(x * 2, given)
    del given
    total.backward()
    assert watched() is None


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
