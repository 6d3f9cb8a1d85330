"""Tests of minidynamo/autograd/trace/grad_graph_queries.py: inputs get zeros where eager has zeros, and None where
eager has None."""

from __future__ import annotations

import weakref

import pytest
import torch

import minidynamo

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
