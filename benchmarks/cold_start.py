"""Owns the limits of the cold and the warm start.

`benchmarks.cold` is the fresh process, and imports as little as a typical user.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import cold
from benchmarks.measure import Limit, Result

COLD = (Limit("torch.compile", 0.25),)
WARM = (Limit("the cold step", 0.3),)


def measure(quick: bool) -> Iterator[Result]:
    """Measures the seconds of the first training step in a fresh process, and in the next process."""
    for model_name, samples in cold.samples(quick):
        warm = samples.pop("warm")
        yield Result(f"cold first step of the {model_name}", "s", samples, COLD)
        pair = {"minidynamo": warm, "the cold step": samples["minidynamo"]}
        yield Result(f"warm first step of the {model_name}", "s", pair, WARM)
