"""Owns the timing functions and the form of a result.

Knows no program: each measurement has a separate file.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import minidynamo

Compile = Callable[[Any], Any]

# The compared systems, in the order of the columns: each prepares a function or module for calls.
SYSTEMS: dict[str, Compile] = {
    "eager": lambda target: target,
    "minidynamo": minidynamo.compile,
    "torch.compile": torch.compile,
}


@dataclass(frozen=True)
class Limit:
    """minidynamo takes at most `ratio` of the time or memory of `system`."""

    system: str
    ratio: float


@dataclass(frozen=True)
class Result:
    """The samples of one measurement in each system. The samples of one index were taken directly after one another."""

    name: str
    unit: str
    samples: Mapping[str, list[float]]
    limits: tuple[Limit, ...]

    def median(self, system: str) -> float:
        """Returns the median sample of `system`, in `unit`."""
        return statistics.median(self.samples[system])

    def ratios(self, system: str) -> list[float]:
        """Returns minidynamo's share of `system`, sample by sample, in ascending order."""
        return sorted(mine / other for mine, other in zip(self.samples["minidynamo"], self.samples[system]))

    def ratio(self, system: str) -> float:
        """Returns the median of `ratios`: a disturbance of both systems of a pair cancels out."""
        return statistics.median(self.ratios(system))

    def verdict(self, limit: Limit) -> str:
        """Returns ``pass`` or ``miss``; ``tie`` when the middle half of the ratios includes the limit."""
        ratios = self.ratios(limit.system)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        if self.ratio(limit.system) <= limit.ratio:
            return "pass"
        return "tie" if low <= limit.ratio < high else "miss"


def keep_memory_mapped() -> None:
    """Asks glibc to keep freed blocks of up to 32 MiB mapped, for all systems alike.

    Otherwise the state of the heap decides which system pays for page faults, and page faults cost more than the
    kernels: the same call took 1.3 or 5.5 ms depending on the programs run before.
    """
    trim_threshold, mmap_threshold = -1, -3  # the names in malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)


def interleaved(
    functions: Mapping[str, Callable[[], object]], *, rounds: int, calls: int, scale: float = 1.0
) -> dict[str, list[float]]:
    """Times each function in `rounds` interleaved rounds, `calls` calls at a time; seconds per call times `scale`.

    Each function is called before the first round, so that no compile runs during a measurement.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(max(3, calls // 10)):
            function()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, function in functions.items():
                start = time.perf_counter()
                for _ in range(calls):
                    function()
                samples[name].append((time.perf_counter() - start) / calls * scale)
    finally:
        if collecting:
            gc.enable()
    return samples
