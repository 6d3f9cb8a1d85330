"""A training step of a random program, with or without earlier gradients, needs no more memory than in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minidynamo
from benchmarks.memory import peak_bytes
from tests.end_to_end.random.random_training import SIZE, training_program


def measured(program: Any, x: torch.Tensor, parameters: list[torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
    """Returns the peaks of a step without earlier gradients and of the next step, and the gradients afterwards."""
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


@minidynamo.inlineable_hook
def pack(tensor: torch.Tensor) -> Any:
    return (tensor * 1.01, tensor.shape[0]) if tensor.is_floating_point() else tensor


@minidynamo.inlineable_hook
def unpack(packed: Any) -> torch.Tensor:
    return packed[0] if isinstance(packed, tuple) else packed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_gradients_of_random_programs_are_those_of_eager_with_hooks_in_the_graph(backend):
    with minidynamo.config.patch(saved_tensors_hooks_filtering_mode="all"):
        for seed in range(200, 206):
            program, source, parameters = training_program(seed)
            x, made = torch.randn(SIZE, SIZE), []
            for function in (program, minidynamo.compile(program, backend=backend)):
                leaves = [leaf.detach().clone().requires_grad_() for leaf in (x, *parameters)]
                torch.manual_seed(0)
                with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                    loss = function(*leaves)
                loss.backward()
                made.append([leaf.grad for leaf in leaves if leaf.grad is not None])
            expected, got = made
            assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(expected, got, strict=True)), source
