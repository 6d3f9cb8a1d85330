"""Measures the cost of a call with almost no computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.measure import SYSTEMS, Compile, Limit, Result, interleaved

LIMITS = (Limit("torch.compile", 0.25), Limit("eager", 1.0))


def _caller(system: Compile, x: Tensor, y: Tensor) -> Callable[[], object]:
    # A separate function for each system: systems would share torch.compile's state per code object.
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y) * 2

    compiled = system(f)
    return lambda: compiled(x, y)


def measure(quick: bool) -> Iterator[Result]:
    """Measures the microseconds per call of ``relu(x + y) * 2`` on 8 elements."""
    x, y = torch.randn(8), torch.randn(8)
    functions = {name: _caller(system, x, y) for name, system in SYSTEMS.items()}
    samples = interleaved(functions, rounds=5 if quick else 40, calls=2000, scale=1e6)
    yield Result("call of relu(x + y) * 2 on 8 elements", "us", samples, LIMITS)
