"""Measures the first training step and the first inference in a fresh process: without any cache, as after each edit of
the user, and with the cache of an earlier process.

Run as `python -m benchmarks.cold MODEL MODE SYSTEM`, the module is the fresh process and prints the seconds.
"""

from __future__ import annotations

import compileall
import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.training import MODELS, batch, infer, step

# "warm" is a second process of minidynamo.
NAMES = ("minidynamo", "warm", "torch.compile")
CACHES = ("MINIDYNAMO_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
SWITCHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}


# A training step, and an inference call.
MODES = {"step": step, "inference": infer}


def first_step(model_name: str, mode: str, system: str) -> float:
    """Returns the seconds from a ready model (and optimizer) to the first gradients or scores, imports and compiles
    included."""
    arguments, run = batch(), MODES[mode]
    # Starts torch's threads and loads its kernels, at the same cost in every system.
    run(MODELS[model_name](), *arguments)
    model: Any = MODELS[model_name]().train(mode == "step")
    if mode == "step":  # imports torch's own compiler, as all training does, even in eager
        torch.optim.AdamW(model.parameters())
    start = time.perf_counter()
    if system != "torch.compile":
        model = importlib.import_module("minidynamo").compile(model)
    else:
        model = torch.compile(model)
    run(model, *arguments)
    return time.perf_counter() - start


def fresh_process(folder: str, *command: str, timeout: int = 600) -> list[float]:
    """Runs a module in a process whose caches are in `folder`; returns the numbers in the last line of its output."""
    caches = {name: os.path.join(folder, name) for name in CACHES}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, **SWITCHES, **caches},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return [float(number) for number in done.stdout.splitlines()[-1].split()]


def samples(quick: bool) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yields for each mode and model the seconds of each system, interleaved."""
    compileall.compile_dir("minidynamo", quiet=1)  # installed packages include their bytecode
    for model_name, mode in itertools.product(MODELS, MODES):
        taken: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(1 if quick else 3):
            with tempfile.TemporaryDirectory() as folder:
                for name in NAMES:
                    taken[name] += fresh_process(folder, "benchmarks.cold", model_name, mode, name)
        yield f"{mode} of the {model_name}", taken


def first_calls(quick: bool) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yields the seconds of the import and of the first call of a small function, for each system, interleaved."""
    compileall.compile_dir("minidynamo", quiet=1)
    taken: dict[str, list[list[float]]] = {name: [] for name in NAMES}
    for _ in range(1 if quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            for name in NAMES:
                taken[name].append(fresh_process(folder, "benchmarks.first_call", name))
    yield "import", {"minidynamo": [imported for imported, _ in taken["minidynamo"]]}
    yield "call", {name: [call for _, call in numbers] for name, numbers in taken.items()}


if __name__ == "__main__":
    print(first_step(*sys.argv[1:]))
