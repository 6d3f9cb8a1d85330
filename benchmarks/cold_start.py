"""Owns the limits of the cold start; `benchmarks.cold` is the fresh process and imports as little as a user would."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import cold
from benchmarks.measure import Limit, Result

LIMITS = (Limit("torch.compile", 0.25),)


def measure(quick: bool) -> Iterator[Result]:
    """Seconds of the first training step in a fresh process."""
    for model_name, samples in cold.samples(quick):
        yield Result(f"cold first step of the {model_name}", "s", samples, LIMITS)
