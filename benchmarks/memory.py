"""Measures the peak memory of one training step.

Every allocation and release of torch's CPU allocator is counted through the profiler, whoever asks for it, so that
buffers of generated code count like those of eager operations.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import SYSTEMS, Limit, Result
from benchmarks.training import MODELS, batch, step

# The profiler announces each start and stop on standard error.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

LIMITS = (Limit("eager", 1.0),)


def peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes that `function` allocates and holds at one time. Releasing older memory gives no credit."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        function()
    results = recorded.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda change: change[0])
    held: list[int] = list(itertools.accumulate((size for _, size in changes), initial=0))
    return max(held)


def measure(quick: bool) -> Iterator[Result]:
    """Kibibytes of a step after the first two, which compile and make what stays."""
    for model_name, make in MODELS.items():
        arguments = batch()
        samples: dict[str, list[float]] = {}
        for name, system in SYSTEMS.items():
            torch.manual_seed(0)
            one_step = partial(step, system(make()), *arguments)
            for _ in range(2):
                one_step()
            samples[name] = [peak_bytes(one_step) / 2**10]
        yield Result(f"peak memory of a step of the {model_name}", "KiB", samples, LIMITS)
