"""A training step of a random program needs no more memory than in eager, and neither does one that adds gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minidynamo
from benchmarks.memory import peak_bytes
from tests.end_to_end.random_training import SIZE, training_program


def measured(program: Any, x: torch.Tensor, parameters: list[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
    """The peaks of a step whose gradients are the first and of the next one, and the gradients behind them."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in (x, *parameters)]

    def step() -> None:
        torch.manual_seed(0)
        program(*leaves).backward()

    step()
    for leaf in leaves:
        leaf.grad = None
    peaks = [peak_bytes(step) for _ in range(2)]
    return peaks, [leaf.grad for leaf in leaves if leaf.grad is not None]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(5))
def test_random_training_steps_need_no_more_memory_than_in_eager(part):
    for seed in range(5 * part, 5 * part + 5):
        program, source, parameters = training_program(seed)
        x = torch.randn(SIZE, SIZE)
        peaks, gradients = measured(program, x, parameters)
        got_peaks, got_gradients = measured(minidynamo.compile(program, backend="aot_eager"), x, parameters)
        assert all(map(torch.equal, got_gradients, gradients)), source
        assert all(got <= peak for got, peak in zip(got_peaks, peaks)), f"{source}\n{got_peaks} {peaks}"
