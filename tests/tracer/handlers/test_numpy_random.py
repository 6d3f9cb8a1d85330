"""Tests of minidynamo/tracer/handlers/numpy_random.py: arrays that are drawn before the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import minidynamo

RNG = np.random.default_rng(0)


def of_the_module(x: Tensor) -> Tensor:
    noise = np.random.rand(4).astype("float32")
    more = torch.from_numpy(np.random.uniform(-1.0, 2.0, size=(2, 4)))
    return x + torch.from_numpy(noise) + more.sum(0) + torch.as_tensor(np.random.randint(0, 9, 4))


def of_a_generator(x: Tensor) -> Tensor:
    first = torch.from_numpy(RNG.standard_normal(4).astype(np.float32).clip(-1, 1))
    return x * first + torch.from_numpy(RNG.integers(5, size=4)) + torch.tensor(RNG.random(4))


def in_a_callee(x: Tensor) -> Tensor:
    def noisy(y: Tensor) -> Tensor:
        return y + torch.from_numpy(np.random.normal(0, 1, 4))

    return noisy(noisy(x) * 2).relu()


def _states() -> list[str]:
    return [str(np.random.get_state()), str(RNG.bit_generator.state)]


def _seed(seed: int) -> None:
    np.random.seed(seed)
    RNG.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.mark.parametrize("options", [{}, {"dynamic": True}])
@pytest.mark.parametrize("function", [of_the_module, of_a_generator, in_a_callee])
def test_arrays_are_drawn_before_the_graph(function: Callable[[Tensor], Tensor], options: dict[str, Any]) -> None:
    compiled = minidynamo.compile(function, backend="eager", fullgraph=True, **options)
    for call in range(4):
        x = torch.full((4,), float(call))
        _seed(call)
        want, state = function(x), _states()
        _seed(call)
        assert torch.equal(compiled(x), want) and _states() == state
    assert compiled.stats.compiles == 1


def test_the_tensor_has_the_memory_of_the_array() -> None:
    def shared(x: Tensor) -> Any:
        array = np.random.rand(3)
        tensor = torch.from_numpy(array)
        return x + tensor, tensor, array

    compiled = minidynamo.compile(shared, backend="eager")
    for _ in range(2):
        _, tensor, array = compiled(torch.zeros(3))
        tensor[0] = 7.0
        assert array[0] == 7.0 and compiled.stats.graph_breaks == 0


def test_an_error_of_the_graph_draws_each_number_once() -> None:
    def indexed(x: Tensor, index: Tensor) -> Tensor:
        first = torch.from_numpy(np.random.rand(3))
        y = x[index]
        return y + first + torch.from_numpy(RNG.random(3))

    compiled = minidynamo.compile(indexed, backend="eager")
    x, good, bad = torch.ones(3), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 5])
    for index in (good, bad):
        outcomes = []
        for run in (indexed, compiled):
            _seed(3)
            try:
                outcomes.append((run(x, index).tolist(), _states()))
            except IndexError:
                outcomes.append(("error", _states()))
        assert outcomes[0] == outcomes[1]


def reads_a_value(x: Tensor) -> Tensor:
    return x * float(np.random.rand(4)[0])


def varying_size(x: Tensor, count: int = 4) -> Tensor:
    return x + torch.from_numpy(np.random.rand(len(x)))


def of_a_size_of_zero_dimensions(x: Tensor) -> Tensor:
    return x * np.random.rand()


def reads_an_item(x: Tensor) -> Tensor:
    return x * torch.from_numpy(np.random.rand(1)).item()


def loops(x: Tensor) -> Tensor:
    for number in np.random.rand(3):
        x = x * float(number)
    return x


def decides(x: Tensor) -> Tensor:
    return x * 2 if np.random.rand(3).sum() > 1.5 else x


@pytest.mark.parametrize(
    "function", [reads_an_item, loops, decides, reads_a_value, varying_size, of_a_size_of_zero_dimensions]
)
def test_other_uses_run_eagerly_and_are_right(function: Callable[[Tensor], Tensor]) -> None:
    compiled = minidynamo.compile(function, backend="eager")
    for size in (4, 5, 6):
        x = torch.ones(size)
        _seed(size)
        want, state = function(x), _states()
        _seed(size)
        assert torch.equal(compiled(x), want) and _states() == state


def test_with_fixed_sizes_alone_the_graph_breaks() -> None:
    compiled = minidynamo.compile(of_the_module, backend="eager", dynamic=False)
    compiled(torch.ones(4))
    assert "MD206" in str(compiled.explain())
