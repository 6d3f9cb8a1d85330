"""Owns the tables of peak memory in training: first of models, then of random programs.

`python -m benchmarks peaks [--models NAME ...] [--programs N] [--first SEED] [--backend NAME ...] [--dynamic]`. Exits
with 1 if a peak exceeds its limit: `model_peaks.py` and `random_peaks.py` have the limits.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import torch
from rich.console import Console

import minidynamo
from benchmarks import model_peaks, random_peaks
from benchmarks.peak_models import MODELS
from benchmarks.tables import chosen, show, wide_console

MODEL_COLUMNS = ("", "batch", "eager")


def of_models(console: Console, options: argparse.Namespace) -> list[str]:
    """Measures the models and prints their table; returns a line for each exceeded limit."""
    found = []
    for name in options.models:
        for batch in options.batch:
            with console.status(f"{name}, batch {batch}"):
                found.append(model_peaks.measure(name, batch, options.backend))
            console.print("  ".join(model_peaks.row(found[-1])), style="dim", soft_wrap=True)
    if not found:
        return []
    columns = (*MODEL_COLUMNS, *options.backend, *(f"{backend}, of eager" for backend in options.backend))
    rows = [model_peaks.row(peak) for peak in found]
    means = [f"{model_peaks.mean(found, backend):.2f}" for backend in options.backend]
    rows.append(["geometric mean", *[""] * (2 + len(means)), *means])
    show(console, "peaks of models in training, MiB", columns, rows, for_document=options.markdown)
    return model_peaks.misses(found)


def of_random_programs(console: Console, options: argparse.Namespace) -> list[str]:
    """Measures the random programs and prints their table; returns a line for each exceeded limit."""
    seeds, rows, misses = range(options.first, options.first + options.programs), [], []
    for backend in options.backend:
        if backend == model_peaks.TORCH or not seeds:
            continue
        with console.status(backend):
            found = [*random_peaks.peaks(seeds, backend, options.dynamic or None)]
        rows.append(random_peaks.row(backend, found))
        for peak in found:
            text = f"{backend}, seed {peak.seed}: {peak.compiled:,} bytes, eager {peak.eager:,}"
            if peak.share > random_peaks.LIMIT:
                misses.append(text)
            elif peak.compiled > peak.eager:
                console.print(text)
    if rows:
        title = "peaks of random training programs, of eager's"
        show(console, title, random_peaks.COLUMNS, rows, for_document=options.markdown)
    return misses


def main(arguments: Sequence[str]) -> None:
    """Measures, prints both tables and the exceeded limits; exits with 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peaks", description=__doc__)
    parser.add_argument("--models", nargs="*", metavar="NAME", help="models (default: all; none without a name)")
    parser.add_argument("--batch", nargs="+", type=int, default=model_peaks.BATCHES, metavar="N")
    parser.add_argument("--programs", type=int, default=200, metavar="N", help="random programs (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first (default: 0)")
    parser.add_argument(
        "--backend",
        nargs="+",
        default=["aot_eager", "native"],
        metavar="NAME",
        help=f"backends; {model_peaks.TORCH} measures models with torch's compiler",
    )
    parser.add_argument("--dynamic", action="store_true", help="compile random programs for sizes that vary")
    parser.add_argument("--markdown", action="store_true", help="print the tables for a document, too")
    options = parser.parse_args(arguments)
    if options.models is None:
        options.models = list(MODELS)
    elif options.models:
        options.models = chosen(parser, options.models, MODELS, "model")
    torch.set_num_threads(1)  # waiting threads take time where a compiler runs next to them
    console = wide_console()
    with warnings.catch_warnings(), minidynamo.config.patch(graph_cache=False):
        warnings.simplefilter("ignore")
        misses = of_models(console, options) + of_random_programs(console, options)
    for line in misses:
        console.print(f"above the limit: {line}", soft_wrap=True)
    sys.exit(bool(misses))
