"""Runs the named measurements, or all, and prints one table: `python -m benchmarks [NAME ...] [--quick]`."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import (
    blocks,
    capture,
    captured_backward,
    cold_start,
    coverage,
    data_parallel,
    guards,
    kernels,
    layers,
    libraries,
    memory,
    overhead,
    peaks,
    small,
    steps,
    storms,
)
from benchmarks.measure import SYSTEMS, Result
from benchmarks.tables import chosen, show, wide_console

MEASUREMENTS: dict[str, Callable[[bool], Iterator[Result]]] = {
    "overhead": overhead.measure,
    "small": small.measure,
    "guards": guards.measure,
    "cold": cold_start.measure,
    "capture": capture.measure,
    "kernels": kernels.measure,
    "steps": steps.measure,
    "memory": memory.measure,
    "storms": storms.measure,
}
OWN_TABLES: dict[str, Callable[[list[str]], None]] = {
    "blocks": blocks.main,
    "captured_backward": captured_backward.main,
    "coverage": coverage.main,
    "data_parallel": data_parallel.main,
    "layers": layers.main,
    "libraries": libraries.main,
    "peaks": peaks.main,
}
COLUMNS = ("", "unit", *SYSTEMS, "of eager", "of torch.compile", "limit")


def cells(result: Result) -> list[str]:
    """Returns a row: medians, ratios, and each limit with its verdict."""
    medians = [f"{result.median(name):.3g}" if name in result.samples else "" for name in SYSTEMS]
    medians = [text if "e" not in text else f"{float(text):.0f}" for text in medians]
    others = [name for name in SYSTEMS if name != "minidynamo"]
    ratios = [f"{result.ratio(name):.2f}" if name in result.samples else "" for name in others]
    limits = [f"{limit.ratio:g} {limit.system}: {result.verdict(limit)}" for limit in result.limits]
    return [result.name, result.unit, *medians, *ratios, ", ".join(limits)]


def machine() -> str:
    """Returns the machine and the versions of a measurement."""
    models = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    cpu = models[0] if models else platform.processor() or platform.machine()
    load = f", load {os.getloadavg()[0]:.1f} before the run" if hasattr(os, "getloadavg") else ""
    return (
        f"{cpu}, {torch.get_num_threads()} threads{load}; Python {platform.python_version()}, torch {torch.__version__}"
    )


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> None:
    """Measures and prints: one table of all named `MEASUREMENTS`, then each of `OWN_TABLES` in a process of its own.

    Where a table of `OWN_TABLES` is the only measurement named, all further arguments belong to it.
    """
    if _names_one_table(sys.argv[1:]):
        return OWN_TABLES[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    shared, own = ", ".join(MEASUREMENTS), ", ".join(OWN_TABLES)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {shared} (all of these without a name), {own}"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it works, not for numbers")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document, too")
    options = parser.parse_args()
    names = chosen(parser, options.names or list(MEASUREMENTS), [*MEASUREMENTS, *OWN_TABLES], "measurement")
    if together := [name for name in names if name in MEASUREMENTS]:
        _measure_together(together, options)
    for name in names:
        if name in OWN_TABLES:
            subprocess.run([sys.executable, "-m", "benchmarks", name], check=True)


def _names_one_table(arguments: list[str]) -> bool:
    """True if the first argument names one of `OWN_TABLES`, and no later one names a measurement."""
    named = [argument in MEASUREMENTS or argument in OWN_TABLES for argument in arguments]
    return bool(arguments) and arguments[0] in OWN_TABLES and not any(named[1:])


def _measure_together(names: list[str], options: argparse.Namespace) -> None:
    """Prints a table of the named `MEASUREMENTS`, and each row as soon as it is measured."""
    console = wide_console()
    console.print(machine(), soft_wrap=True)
    rows = []
    with warnings.catch_warnings(), console.status("") as status:
        # On import, torch.compile warns about settings that a user cannot change here.
        warnings.simplefilter("ignore")
        for name in names:
            status.update(f"measuring: {name}")
            for result in MEASUREMENTS[name](options.quick):
                rows.append(cells(result))
                console.print("  ".join(cell for cell in rows[-1] if cell), style="dim", soft_wrap=True)
    show(
        console,
        "Medians; ratios are minidynamo's share, pair by pair",
        COLUMNS,
        rows,
        left=(0, 1, -1),
        for_document=options.markdown,
    )


if __name__ == "__main__":
    main()
