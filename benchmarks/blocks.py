"""Measures regional compilation: the first training step of a stack of equal transformer blocks, each compiled alone.

`python -m benchmarks blocks [--blocks N ...] [--rounds N] [--markdown]`. Run as `python -m benchmarks.blocks SYSTEM N`,
the module is the fresh process and prints the seconds of the first step, of a later one, and the number of compiles.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.cold import CACHES, SWITCHES
from benchmarks.tables import show, wide_console

SYSTEMS = (
    "eager",
    "minidynamo native",
    "minidynamo aot_eager",
    "torch.compile inductor",
    "torch.compile aot_eager",
)
COLUMNS = ("", "blocks", "compiles", "first step, s", "later step, s", "of the fewest and eager steps")
WIDTH, HEADS, BATCH, LENGTH = 128, 4, 2, 64


class Block(nn.Module):
    """A pre-norm transformer block that knows its number."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop, self.layer_idx = nn.Dropout(0.1), layer_idx

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies attention and the feed-forward layer."""
        batch, length, width = x.shape
        projected = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape)) / (self.layer_idx + 1)
        made: torch.Tensor = x + self.drop(self.down(nn.functional.gelu(self.up(self.norms[1](x)))))
        return made


def step(blocks: list[Any]) -> float:
    """Returns the seconds of a training step."""
    start = time.perf_counter()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    for block in blocks:
        x = block(x)
    x.square().mean().backward()
    return time.perf_counter() - start


def compiled(system: str, count: int) -> tuple[list[Any], Callable[[], int]]:
    """Returns the blocks, and a function that returns the number of compiles."""
    blocks: list[Any] = [Block(number) for number in range(count)]
    library, _, backend = system.partition(" ")
    if library == "minidynamo":
        minidynamo = importlib.import_module("minidynamo")
        for block in blocks:
            minidynamo.compile(block, backend=backend)
        return blocks, lambda: sum(minidynamo.stats(block).compiles for block in blocks)
    if library == "torch.compile":
        counters = importlib.import_module("torch._dynamo.utils").counters
        return [torch.compile(block, backend=backend) for block in blocks], lambda: counters["stats"]["unique_graphs"]
    return blocks, lambda: 0


def process(system: str, count: int) -> None:
    """Prints the seconds of the first step and of a later one, and the number of compiles."""
    step([Block(0)])  # starts torch's threads
    blocks, compiles = compiled(system, count)
    first = step(blocks)
    print(first, statistics.median(step(blocks) for _ in range(5)), compiles())


def fresh_process(system: str, count: int) -> list[float]:
    """Runs `process` in a new Python without caches, and returns the printed numbers."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: os.path.join(folder, name) for name in CACHES}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.blocks", system, str(count)],
            env={**os.environ, **SWITCHES, **caches},
            capture_output=True,
            text=True,
            timeout=900,
        )
    if done.returncode:
        raise RuntimeError(f"{system} failed on {count} blocks:\n{done.stderr}")
    return [float(word) for word in done.stdout.split()[-3:]]


def table(counts: list[int], rounds: int) -> list[list[str]]:
    """Returns the rows: medians of `rounds` interleaved runs. The last column divides the first step by that of the
    fewest blocks plus an eager step of each further block.
    """
    cases = [(system, count) for system in SYSTEMS for count in counts]
    taken: dict[tuple[str, int], list[list[float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            taken[case].append(fresh_process(*case))
    medians = {case: [statistics.median(column) for column in zip(*runs)] for case, runs in taken.items()}
    fewest = min(counts)
    rows = []
    for system, count in cases:
        first, later, compiles = medians[system, count]
        eager = medians["eager", count][1] / count
        ratio = first / (medians[system, fewest][0] + (count - fewest) * eager)
        rows.append([system, str(count), f"{compiles:.0f}", f"{first:.2f}", f"{later:.4f}", f"{ratio:.2f}"])
    return rows


def main(arguments: list[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks blocks", description=__doc__)
    parser.add_argument("--blocks", nargs="+", type=int, default=[2, 24], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true", help="print the table for a document, too")
    options = parser.parse_args(arguments)
    rows = table(options.blocks, options.rounds)
    show(wide_console(), "equal blocks, each compiled alone", COLUMNS, rows, for_document=options.markdown)


if __name__ == "__main__":
    process(sys.argv[1], int(sys.argv[2]))
