"""Tests of minidynamo/autograd/functional/written_inputs.py: writes to inputs at the program's position, at no cost in
memory."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from benchmarks.memory import peak_bytes

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def chain(h, g, w):
    h.mul_(2).sin_()
    return h @ w


def part(h, g, w):
    h[:32].add_(1)
    h[0] = 2
    return h @ w


def read_before_and_behind(h, g, w):
    old = h + 1
    h.mul_(g)
    return (old * g).sum() + (h @ w).relu().sum(), h.t()[1:]


def each_from_the_other(h, g, w):
    h.add_(g)
    g.mul_(h).sub_(h.mean(0))
    return h @ w, g * 2


def swap(h, g, w):
    old = h.clone()
    h.copy_(g)
    g.copy_(old)
    return (h - g) @ w


def several_times(h, g, w):
    found = [w.sum()]
    for _ in range(3):
        h.mul_(1.1).add_(h @ g)
        found.append((h.detach() * 2).sum(0))
    return found


def rewritten(h, g, w):
    h.zero_()
    h.add_(h.t() + g)
    return h * w


def measured(program, backend):
    """Returns results, inputs, write counts of the inputs, the gradient and the peak of a step."""
    torch.manual_seed(0)
    h, g, w = torch.rand(64, 64), torch.rand(64, 64), torch.rand(64, 64, requires_grad=True)
    call = program if backend is None else minidynamo.compile(program, backend=backend, fullgraph=True)
    found = []

    def step():
        w.grad = None
        made = call(h, g, w)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        found[:] = [value.detach().clone() for value in made]
        sum(value.sum() for value in made if value.requires_grad).backward()

    step()
    values = [*found, h.clone(), g.clone(), w.grad.clone()]
    versions = h._version, g._version
    found.clear()
    w.grad = None
    peak = peak_bytes(lambda: call(h, g, w))
    return values, versions, peak


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [chain, part, read_before_and_behind, each_from_the_other, swap, several_times, rewritten]
)
def test_written_inputs_are_what_they_are_in_eager(program, backend):
    values, versions, peak = measured(program, None)
    got_values, got_versions, got_peak = measured(program, backend)
    torch.testing.assert_close(got_values, values, rtol=1e-4, atol=1e-4)
    assert got_versions == versions
    if backend == "aot_eager" and program in (chain, part, each_from_the_other):
        assert got_peak <= peak
    if program is chain:
        assert got_peak <= peak


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_is_kept_for_backward_where_eager_keeps_it(backend):
    f = minidynamo.compile(chain, backend=backend)
    h, w = torch.rand(4, 4), torch.rand(4, 4, requires_grad=True)
    out = f(h, h.clone(), w)
    assert [value.bytes for value in f.saved()] == [64]
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_eager_does_not_keep_may_be_written_before_backward(backend):
    def program(h, w):
        h.mul_(2)
        return (h + 1).sigmoid() * w

    f = minidynamo.compile(program, backend=backend)
    h, w = torch.rand(4, 4), torch.rand(4, 4, requires_grad=True)
    expected = (h * 2 + 1).sigmoid()
    out = f(h, w)
    h.zero_()
    out.sum().backward()
    torch.testing.assert_close(w.grad, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_behind_a_write_leaves_the_argument_written_once(backend):
    def program(h, i):
        h.add_(1)
        return torch.linalg.cholesky(h)[i]

    f = minidynamo.compile(program, backend=backend)
    good = torch.eye(3)
    f(good, torch.tensor(0))
    bad = -2 * torch.eye(3)
    with pytest.raises(torch.linalg.LinAlgError):
        f(bad, torch.tensor(0))
    assert torch.equal(bad, 1 - 2 * torch.eye(3))
