"""Tests of minidynamo/autograd/partition/writing_calls.py: calls that write to fresh memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import minidynamo
from tests.autograd.programs import graphs, targets

ATEN = torch.ops.aten
WRITES, COPIES = "aten.rrelu_with_noise.default", "aten.rrelu_with_noise_functional.default"


def leaky(x, noise):
    return functional.rrelu(x, training=True)


def read_behind(x, noise):
    noise = noise * 2
    return ATEN.rrelu_with_noise(x, noise, training=True) + noise


def read_before(x, noise):
    noise = noise * 2
    return noise.sin() + ATEN.rrelu_with_noise(x, noise, training=True)


def given(x, noise):
    return ATEN.rrelu_with_noise(x, noise, training=True)


def viewed(x, noise):
    return ATEN.rrelu_with_noise(x, (noise * 2).t(), training=True)


def constant(x, noise):
    noise = torch.zeros_like(x)
    return ATEN.rrelu_with_noise(x, noise, training=True) * noise


@pytest.mark.parametrize("program", [leaky, read_behind, constant])
def test_what_was_made_for_a_call_is_written(program):
    made = targets(graphs(lambda *args: (program(*args),), [torch.ones(4, 4), torch.ones(4, 4)]).forward)
    assert WRITES in made and COPIES not in made


@pytest.mark.parametrize("program", [read_before, given, viewed])
def test_what_something_else_uses_is_copied(program):
    made = targets(graphs(lambda *args: (program(*args),), [torch.ones(4, 4), torch.ones(4, 4)]).forward)
    assert COPIES in made and WRITES not in made


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("program", [leaky, read_behind, read_before, given, viewed, constant])
@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
def test_results_are_those_of_eager(program, trains, backend):
    def step(call):
        torch.manual_seed(0)
        x, noise = torch.randn(16, 16, requires_grad=trains), torch.rand(16, 16)
        made = call(x, noise)
        return made.detach(), noise, *(torch.autograd.grad(made.square().sum(), x) if trains else ())

    call = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(step(call), step(program), rtol=1e-6, atol=1e-6)
