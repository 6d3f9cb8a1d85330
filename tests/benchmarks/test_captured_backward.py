"""The peaks and kernels of captured backwards."""

from __future__ import annotations

import contextlib

import pytest
import torch

import minidynamo
from benchmarks.captured_backward import WIDTH, kernels_of_step, peak_of_step
from benchmarks.captured_programs import PROGRAMS, mlp


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "DDP" not in name])
def test_the_peak_of_a_captured_backward_is_at_most_that_of_eager(name):
    make, micro_batches = PROGRAMS[name]
    eager = peak_of_step(make(WIDTH), contextlib.nullcontext(), micro_batches)
    assert 0 < peak_of_step(make(WIDTH), minidynamo.captured_backward("aot_eager"), micro_batches) <= eager


LOSS = 5
"""The kernels of the loss: the ones, a division, a power, and two products."""


def test_kernels_are_operators_that_compute():
    # two products and a sum for each layer, without the product for the batch; two activations
    assert kernels_of_step(mlp(WIDTH), contextlib.nullcontext(), 1) == LOSS + 5 + 2


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient.flatten(0, 1).view_as(gradient) * 2).add_(1)


class Model(torch.nn.Module):
    def forward(self, x):
        return Shifted.apply(x.requires_grad_())


def test_views_are_no_kernels():
    assert kernels_of_step(Model(), contextlib.nullcontext(), 1) == LOSS + 2
