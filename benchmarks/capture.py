"""Owns the capture measurement: breaks, and the seconds of a first call whose graphs then run as captured.

The process is warm: one-time imports and inspections of libraries are not counted. Each sample compiles anew.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import minidynamo
from benchmarks.measure import Limit, Result
from examples.models import ARCHITECTURES, Architecture

LIMITS = (Limit("torch.compile", 1.0),)
COMPILE: dict[str, Callable[[nn.Module], Any]] = {
    "minidynamo": lambda model: minidynamo.compile(model, backend="eager"),
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
}
RESET: dict[str, Callable[[], None]] = {"minidynamo": minidynamo.reset, "torch.compile": torch.compiler.reset}


def first_call(system: str, architecture: Architecture) -> float:
    """Returns the seconds of a model's first call, without earlier compiles."""
    torch.manual_seed(0)
    model, inputs = architecture.make(), architecture.inputs()
    model(*architecture.inputs())  # torch's own lazy parts
    RESET[system]()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        COMPILE[system](model)(*inputs)
        return time.perf_counter() - start
    finally:
        gc.enable()


def breaks(system: str, architecture: Architecture) -> int:
    """Returns the number of graph breaks in one call."""
    counts: list[object] = []
    unsubscribe = minidynamo.on_event(lambda event: counts.append(event) if event.kind == "graph_break" else None)
    counters = torch._dynamo.utils.counters["graph_break"]
    counters.clear()
    try:
        first_call(system, architecture)
    finally:
        unsubscribe()
    return len(counts) if system == "minidynamo" else sum(counters.values())


def measure(quick: bool) -> Iterator[Result]:
    """Yields a row for each architecture; the name shows the breaks of minidynamo and torch.compile."""
    for name, architecture in ARCHITECTURES.items():
        found = {system: breaks(system, architecture) for system in COMPILE}
        samples: dict[str, list[float]] = {system: [] for system in COMPILE}
        for _ in range(2 if quick else 7):
            for system in COMPILE:
                samples[system].append(first_call(system, architecture))
        # At a data-dependent branch, torch.compile falls back to eager for the whole function and has less to do.
        limits = () if architecture.data_dependent else LIMITS
        yield Result(f"capture: {name}, {found['minidynamo']} : {found['torch.compile']} breaks", "s", samples, limits)
