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
    """Measures the import, the first call and the first step of models in a fresh process, and in the next process."""
    (_, imports), (_, calls) = cold.first_calls(quick)
    yield Result("import minidynamo, CPU", "s", imports, ())
    warm = calls.pop("warm")
    yield Result("cold first call of `relu(x + 1) * 2`, CPU", "s", calls, COLD)
    yield Result("warm first call of `relu(x + 1) * 2`, CPU", "s", {"minidynamo": warm}, ())
    for name, samples in cold.samples(quick):
        warm = samples.pop("warm")
        yield Result(f"cold first {name}", "s", samples, COLD)
        pair = {"minidynamo": warm, "the cold step": samples["minidynamo"]}
        # Imports are most of a warm inference; in a training step the optimizer has paid for them.
        yield Result(f"warm first {name}", "s", pair, WARM if name.startswith("step") else ())
