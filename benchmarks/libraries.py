"""Owns the measurement of other libraries' models: whether the models compile in as few graphs as with torch.compile,
with the results and gradients of eager.

`python -m benchmarks libraries [MODEL ...]`. Each model runs in a separate process (`library_worker.py`);
`library_programs.py` lists the models.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.coverage_areas import ROOT
from benchmarks.library_programs import PROGRAMS
from benchmarks.tables import chosen, show, wide_console

OURS, TORCH = "minidynamo", "torch.compile"
COLUMNS = (
    "",
    "graphs",
    "of torch.compile",
    "breaks",
    "of torch.compile",
    "results differ by",
    "gradients differ by",
    "first call, s",
    "of torch.compile",
    "",
)
# Where the library itself computes differently while it is compiled.
TOLERANCE = 1e-5
SECONDS = 600  # for one model


@dataclass(frozen=True)
class Seen:
    """The outcome of one compiler for a program: `results` and `gradients` are the largest relative differences from
    eager, `seconds` the time of the first call. `error`: the reason for missing numbers."""

    graphs: int = 0
    breaks: int = 0
    results: float = 0.0
    gradients: float = 0.0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Finding:
    """The outcomes of a program here and with torch.compile."""

    name: str
    other_path: bool
    ours: Seen
    torch: Seen

    @property
    def failure(self) -> str:
        """Returns the reason for a failure; empty when the program passes."""
        if self.ours.error:
            return self.ours.error
        if max(self.ours.results, self.ours.gradients) > (TOLERANCE if self.other_path else 0.0):
            return "differs from eager"
        if not self.torch.error and self.ours.graphs > self.torch.graphs:
            return "more graphs"
        return ""

    def row(self) -> list[str]:
        """Returns a line of the table."""
        ours, theirs = self.ours, self.torch
        cells = [
            (ours, str(ours.graphs)),
            (theirs, str(theirs.graphs)),
            (ours, str(ours.breaks)),
            (theirs, str(theirs.breaks)),
            (ours, f"{ours.results:.1g}"),
            (ours, f"{ours.gradients:.1g}"),
            (ours, f"{ours.seconds:.1f}"),
            (theirs, f"{theirs.seconds:.1f}"),
        ]
        return [self.name, *("raises" if seen.error else text for seen, text in cells), self.failure or "pass"]


def read(record: dict[str, Any]) -> Finding:
    """Parses the finding that a process has written."""
    return Finding(record["name"], record["other_path"], Seen(**record["ours"]), Seen(**record["torch"]))


def measure(name: str) -> Finding:
    """Runs the program in a separate process."""
    command = [sys.executable, "-m", "benchmarks.library_worker", name]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return _lost(name, f"did not come to an end in {SECONDS} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return _lost(name, f"the process ended with {done.returncode}: {last}")
    return read(json.loads(done.stdout))


def _lost(name: str, error: str) -> Finding:
    return Finding(name, PROGRAMS[name].other_path, Seen(error=error), Seen(error=error))


def missing(names: Iterable[str]) -> list[str]:
    """Returns the required packages that are not installed."""
    needed = {package for name in names for package in PROGRAMS[name].packages}
    return sorted(package for package in needed if importlib.util.find_spec(package) is None)


def main(arguments: list[str]) -> None:
    """Measures and prints; the exit status is 0 if all models passed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks libraries", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"any of {', '.join(PROGRAMS)}; all without one")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document, too")
    options = parser.parse_args(arguments)
    names = chosen(parser, options.names, PROGRAMS, "model")
    absent = missing(names)
    if absent:
        parser.error(f"needs {' and '.join(absent)}: python -m pip install -e '.[libraries]'")

    console = wide_console()
    versions = f"torch {torch.__version__}, transformers {importlib.metadata.version('transformers')}"
    today = datetime.date.today().isoformat()
    console.print(f"{today}, {versions}, Python {platform.python_version()}", highlight=False)
    findings = []
    for name in names:
        with console.status(name):
            findings.append(measure(name))
        console.print("  ".join(findings[-1].row()), style="dim", soft_wrap=True, markup=False)
        if findings[-1].torch.error:
            console.print(f"  torch.compile: {findings[-1].torch.error}", soft_wrap=True, markup=False)
    title, rows = "Inference, training steps with three shapes, generation", [finding.row() for finding in findings]
    show(console, title, COLUMNS, rows, left=(0, -1), for_document=options.markdown)
    if any(finding.failure for finding in findings):
        sys.exit(1)
