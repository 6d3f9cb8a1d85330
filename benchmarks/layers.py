"""Measures how the compile time grows with the model: the first training step (forward, loss and backward) of
transformers of 4 to 32 layers, each captured as one graph.

`python -m benchmarks layers [--layers N ...] [--rounds N] [--cpu] [--markdown]`. Run as `python -m benchmarks.layers
SYSTEM N`, the module is the fresh process, and prints the seconds of the first step and its CPU seconds. On a machine
with other work, `--cpu` compares CPU seconds; torch.compile then builds its kernels one after another.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import itertools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.cold import fresh_process
from benchmarks.tables import show, wide_console
from benchmarks.training import batch, step
from examples.models import Transformer

SYSTEMS = ("minidynamo", "torch.compile")
COLUMNS = ("", "layers", "first step, s", "s per layer", "s per further layer", "per layer, of torch.compile")
EVEN = 0.15
"""Seconds per layer may differ by this share from their mean over all sizes."""
SHARE = 0.15
"""The largest share of torch.compile's seconds per layer."""


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def first_step(system: str, layers: int) -> tuple[float, float]:
    """Returns the seconds and the CPU seconds of the first step, imports and compiles included."""
    arguments = batch()
    step(Transformer(layers=layers), *arguments)  # starts torch's threads and loads its kernels
    model = Transformer(layers=layers)
    torch.optim.AdamW(model.parameters())  # imports torch's own compiler, as all training does, even in eager
    start, used = time.perf_counter(), cpu_seconds()
    compiled: Any = (
        torch.compile(model) if system == "torch.compile" else importlib.import_module(system).compile(model)
    )
    step(compiled, *arguments)
    return time.perf_counter() - start, cpu_seconds() - used


def measure(sizes: Sequence[int], rounds: int, *, cpu: bool) -> dict[tuple[str, int], float]:
    """Returns the median seconds of each system and number of layers, in interleaved rounds; with `cpu` CPU
    seconds."""
    compileall.compile_dir("minidynamo", quiet=1)  # installed packages include their bytecode
    cases = [*itertools.product(SYSTEMS, sizes)]
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        for system, layers in cases:
            with tempfile.TemporaryDirectory() as folder:
                process = (folder, "benchmarks.layers", system, str(layers))
                taken[system, layers].append(fresh_process(*process, timeout=3600)[cpu])
    return {case: statistics.median(seconds) for case, seconds in taken.items()}


def table(seconds: Mapping[tuple[str, int], float]) -> list[list[str]]:
    """Returns the rows of the table, from the smallest model to the largest."""
    rows = []
    for (system, layers), taken in seconds.items():
        smaller = [count for name, count in seconds if name == system and count < layers]
        further = ""
        if smaller:
            further = f"{(taken - seconds[system, smaller[-1]]) / (layers - smaller[-1]):.3f}"
        share = f"{taken / seconds['torch.compile', layers]:.3f}" if system == SYSTEMS[0] else ""
        rows.append([system, str(layers), f"{taken:.2f}", f"{taken / layers:.3f}", further, share])
    return rows


def misses(seconds: Mapping[tuple[str, int], float]) -> list[str]:
    """Returns the missed limits, one line each."""
    own = {layers: taken / layers for (system, layers), taken in seconds.items() if system == SYSTEMS[0]}
    mean = statistics.mean(own.values())
    found = [
        f"{layers} layers take {taken:.3f} s per layer, the mean is {mean:.3f}"
        for layers, taken in own.items()
        if abs(taken / mean - 1) > EVEN
    ]
    for layers in own:
        share = seconds[SYSTEMS[0], layers] / seconds[SYSTEMS[1], layers]
        if share > SHARE:
            found.append(f"{layers} layers take {share:.3f} of torch.compile's time; the limit is {SHARE}")
    return found


def main(arguments: list[str]) -> None:
    """Prints the table and the missed limits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks layers", description=__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[4, 8, 16, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document, too")
    options = parser.parse_args(arguments)
    console = wide_console()
    if options.cpu:
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # only finished processes are counted
    seconds = measure(sorted(options.layers), options.rounds, cpu=options.cpu)
    show(console, "first steps of transformers", COLUMNS, table(seconds), for_document=options.markdown)
    for line in misses(seconds):
        console.print(f"missed: {line}", soft_wrap=True)


if __name__ == "__main__":
    print(*first_step(sys.argv[1], int(sys.argv[2])))
