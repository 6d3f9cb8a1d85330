"""Backward draws the random numbers of checkpoints again, from one state per checkpoint if the state is smaller."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import minidynamo

again = functools.partial(checkpoint, use_reentrant=False)


def make():
    return torch.randn(96, 96, requires_grad=True), torch.randn(96, 96, requires_grad=True)


def several_draws(x, w):
    for _ in range(2):
        x = x + again(lambda x: F.dropout(F.dropout(torch.relu(x @ w), 0.3) @ w, 0.5), x)
    return F.dropout(x, 0.1).abs() + torch.rand(96)


def one_inside_another(x, w):
    inner = lambda x: again(lambda x: F.dropout(x.sin(), 0.5), x @ w) * 2  # noqa: E731
    return again(lambda x: F.dropout(inner(x).cos(), 0.2), x).tanh()


def reentrant(x, w):
    return checkpoint(lambda x: F.alpha_dropout(x @ w, 0.2, True) + torch.randn_like(x), x.sin(), use_reentrant=True)


def in_segments(x, w):
    layers = [lambda x: F.dropout(x @ w, 0.5), torch.tanh, lambda x: F.dropout(x @ w, 0.5), torch.tanh]
    return checkpoint_sequential(layers, 2, x, use_reentrant=False)


def what_is_drawn_comes_out(x, w):
    noise, y = again(lambda x: (torch.rand(96, 96), F.dropout(x @ w, 0.5)), x)
    return noise * y.sin()


def by_data(x, w):
    return again(lambda x: torch.bernoulli(x.detach().sigmoid()) * (x @ w), x)


def trained(call):
    """Returns all results of a call and its derivatives, and the generator's state after each step."""
    torch.manual_seed(0)
    args = make()
    out = call(*args)
    found = [out, torch.get_rng_state()]
    found += torch.autograd.grad(out.sum(), args, retain_graph=True)
    torch.rand(3)
    found += torch.autograd.grad(out.sum(), args, create_graph=True)
    found.append(torch.get_rng_state())
    found += torch.autograd.grad(sum(g.square().sum() for g in found[-3:-1]), args)
    return [*found, torch.get_rng_state()]


PROGRAMS = (several_draws, one_inside_another, in_segments, what_is_drawn_comes_out, by_data)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_numbers_of_eager_and_its_generator(program):
    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, trained(compiled), trained(program)))
    kept = [value for value in compiled.saved() if value.op == "random_state"]
    assert kept and sum(value.bytes for value in kept) <= 5056 * 2


def test_the_numbers_of_the_reentrant_variant():
    """Computes all gradients at once, and no second derivatives."""
    compiled = minidynamo.compile(reentrant, backend="aot_eager", fullgraph=True)
    found = []
    for call in (reentrant, compiled):
        torch.manual_seed(0)
        args = make()
        out = call(*args)
        states = [torch.get_rng_state()]
        for _ in range(2):
            out.sum().backward(retain_graph=True)
            states.append(torch.get_rng_state())
        found.append([out, *(arg.grad for arg in args), *states])
    assert all(map(torch.equal, *found))
    assert [value.op for value in compiled.saved()].count("random_state") == 1


@pytest.mark.cpp
def test_generated_code_and_other_sizes():
    compiled = minidynamo.compile(several_draws, fullgraph=True, dynamic=True)
    for size in (96, 80):
        found = []
        for call in (several_draws, compiled):
            torch.manual_seed(size)
            args = torch.randn(size, 96, requires_grad=True), torch.randn(96, 96, requires_grad=True)
            out = call(*args)
            found.append([out, torch.get_rng_state(), *torch.autograd.grad(out.sum(), args), torch.get_rng_state()])
        assert all(map(torch.equal, *found))
    assert "draw_again(bernoulli_p" in compiled.code()


def test_a_mask_that_is_smaller_is_kept():
    def program(x):
        return again(lambda x: F.dropout(x.sin(), 0.5), x).cos()

    compiled = minidynamo.compile(program, backend="aot_eager")
    for shape, kept in (((70, 70), ["aten.bernoulli.p"]), ((72, 72), ["random_state"])):
        compiled(torch.randn(shape, requires_grad=True)).sum().backward()
        assert [value.op for value in compiled.saved() if value.dtype in (torch.bool, torch.uint8)] == kept
        compiled.reset()


def test_what_a_generator_of_the_users_draws_is_kept():
    custom = torch.Generator()

    def program(x):
        return again(lambda x: x.sin() * torch.empty_like(x).bernoulli_(0.5, generator=custom), x)

    found = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        custom.manual_seed(1)
        x = torch.ones(96, 96, requires_grad=True)
        found.append([call(x)])
    assert torch.equal(*[out for (out,) in found])


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        up, down = (lambda: nn.Linear(64, 256)), (lambda: nn.Linear(256, 64))
        parts = (nn.Sequential(up(), nn.GELU(), nn.Dropout(0.2), down(), nn.Dropout(0.1)) for _ in range(3))
        self.layers = nn.ModuleList(parts)

    def forward(self, x):
        for layer in self.layers:
            x = x + again(layer, x)
        return x.square().mean()


def test_memory_is_that_of_eager_and_is_foretold():
    module, x = Layers(), torch.randn(256, 64, requires_grad=True)
    timeline = minidynamo.memory_timeline(module, x, backend="aot_eager")
    measured = timeline["compiled"]
    assert measured.peak <= timeline["eager"].peak
    assert measured.after_forward <= timeline["eager"].after_forward
    compiled = minidynamo.compile(lambda x: module(x), backend="aot_eager")
    compiled(x).backward()
    assert abs(compiled.memory_plan().peak - measured.peak) <= 0.02 * measured.peak
