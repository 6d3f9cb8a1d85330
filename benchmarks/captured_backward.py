"""Compares the time of a captured backward with eager, with compiled backwards, and with torch's compiled autograd.

`python -m benchmarks captured_backward` prints the ratios of medians; the systems take turns. torch's compiled autograd
runs afterwards, in turns with eager: torch keeps one store of captured backwards, which either capture replaces.

Backwards run on one thread. With more threads, on a machine with other work, each parallel loop may wait for a thread
without a core, for 5 to 300 ms; up to half of all backwards do, so a median is either the time or the wait.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo import compiled_autograd

import minidynamo

ROUNDS = 101


def _model() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))))


def _compiled(model: nn.Module) -> nn.Module:
    return minidynamo.compile(model, backend="native")


def _torch_compiled(model: nn.Module) -> Any:
    return torch.compile(model)


SYSTEMS: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[], Any]]] = {
    "eager": (lambda model: model, contextlib.nullcontext),
    "compiled model, not captured": (_compiled, contextlib.nullcontext),
    "torch's compiled autograd": (
        _torch_compiled,
        lambda: compiled_autograd._enable(torch.compile),
    ),
    "captured": (lambda model: model, lambda: minidynamo.captured_backward("native")),
    "compiled model, captured": (_compiled, lambda: minidynamo.captured_backward("native")),
}


def main(names: list[str]) -> None:
    """Prints the table for batches of 64."""
    torch.set_num_threads(1)
    torchs = "torch's compiled autograd"
    for group in ([name for name in SYSTEMS if name != torchs], ["eager", torchs]):
        medians = _medians(group)
        for name, median in medians.items():
            others = [other for other in list(medians)[:2] if other != name]
            ratios = ", ".join(f"{median / medians[other]:.2f} of {other}" for other in others)
            print(f"{name}: {median * 1e6:.0f} us; {ratios}")


def _medians(names: list[str]) -> dict[str, float]:
    """Returns the median time of a backward, in seconds."""
    steps = {}
    for name in names:
        torch.manual_seed(0)
        transform, capture = SYSTEMS[name]
        steps[name] = (transform(_model()), capture)
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(ROUNDS + 4):  # the first rounds compile, without and with `.grad`
        for name, (model, capture) in steps.items():
            loss = model(torch.randn(64, 256)).square().mean()
            with capture():
                start = time.perf_counter()
                loss.backward()
                spent = time.perf_counter() - start
            if round_number >= 4:
                times[name].append(spent)
    return {name: statistics.median(found) for name, found in times.items()}
