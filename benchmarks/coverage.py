"""Owns the coverage measurement: the share of cases captured whole here, among the cases that torch.compile captures
whole.

`python -m benchmarks coverage [AREA ...] [--list]`. The cases run in separate processes (`coverage_worker.py`);
`coverage_areas.py` lists the cases.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.coverage_areas import AREAS, ROOT
from benchmarks.tables import chosen, show, wide_console

GOAL = 0.95
COLUMNS = ("", "programs", "torch.compile captures", "minidynamo of these", "share", "only minidynamo", "different")


# The system that is currently running a case.
EAGER, TORCH, OURS = "eager", "torch.compile", "minidynamo"


@dataclass(frozen=True)
class Finding:
    """The outcome of a case. A text is empty where all is well.

    `unfit`: eager itself raises, or gives different results when repeated, or the program requests a graph break.
    `torch`, `ours`: the reason why the compiler does not capture the whole program. `differs`: the difference from
    eager in a program that minidynamo captured, or ran in parts.
    """

    name: str
    unfit: str = ""
    torch: str = ""
    ours: str = ""
    differs: str = ""

    @property
    def wanted(self) -> bool:
        """True if torch.compile captures the whole program, with equal results."""
        return not self.unfit and not self.torch

    @property
    def captured(self) -> bool:
        """True if minidynamo captures the whole program, with equal results."""
        return not self.unfit and not self.ours and not self.differs


@dataclass(frozen=True)
class Coverage:
    """The findings of one area."""

    area: str
    findings: tuple[Finding, ...]

    @property
    def wanted(self) -> int:
        """Counts the programs that torch.compile captures."""
        return sum(finding.wanted for finding in self.findings)

    @property
    def reached(self) -> int:
        """Counts the wanted programs that are captured here."""
        return sum(finding.wanted and finding.captured for finding in self.findings)

    @property
    def missed(self) -> list[Finding]:
        """Returns the programs that torch.compile captures and we do not."""
        return [finding for finding in self.findings if finding.wanted and not finding.captured]

    @property
    def different(self) -> list[Finding]:
        """Returns the programs with a difference from eager: the list has to be empty."""
        return [finding for finding in self.findings if finding.differs]

    def row(self) -> list[str]:
        """Returns a line of the table."""
        fit = [finding for finding in self.findings if not finding.unfit]
        extra = sum(finding.captured and not finding.wanted for finding in fit)
        share = f"{self.reached / self.wanted:.1%}" if self.wanted else ""
        numbers = (len(fit), self.wanted, self.reached, share, extra, len(self.different))
        return [self.area, *map(str, numbers)]


def measure(area: str) -> Coverage:
    """Runs every case of the area."""
    findings: list[Finding] = []
    while True:
        name = turn = ""
        for record in _worker(area, len(findings)):
            if "turn" in record:
                name, turn = record["name"], record["turn"]
            else:
                findings.append(Finding(**record))
                turn = ""
        if not turn:
            return Coverage(area, tuple(findings))
        findings.append(_lost(name, turn))


def _lost(name: str, turn: str) -> Finding:
    """Returns the finding for a case that crashed its process, or did not end."""
    if turn == OURS:
        return Finding(name, differs="the process died or did not come to an end")
    return Finding(name, unfit=f"{turn} died or did not come to an end")


def _worker(area: str, first: int) -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "benchmarks.coverage_worker", area, str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)


def total(parts: Iterable[Coverage]) -> Coverage:
    """All areas as one."""
    return Coverage("all", tuple(finding for part in parts for finding in part.findings))


def misses(parts: Iterable[Coverage]) -> Iterator[str]:
    """Returns a line for each case that torch.compile captures and minidynamo does not, or that differs."""
    for part in parts:
        for finding in part.missed:
            yield f"{part.area}: {finding.name}: {finding.differs or finding.ours}"
        for finding in part.different:
            if not finding.wanted:
                yield f"{part.area}: {finding.name}: DIFFERENT: {finding.differs}"


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks coverage", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"any of {', '.join(AREAS)}; all without one")
    parser.add_argument("--list", action="store_true", help="name what is missed, and what differs")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document, too")
    options = parser.parse_args(arguments)
    areas = chosen(parser, options.areas, AREAS, "area")
    console = wide_console()
    today = datetime.date.today().isoformat()
    console.print(f"{today}, torch {torch.__version__}, Python {platform.python_version()}", highlight=False)
    parts = []
    for area in areas:
        with console.status(area):
            parts.append(measure(area))
        console.print("  ".join(parts[-1].row()), style="dim", soft_wrap=True)
        if options.list:
            for line in misses(parts[-1:]):
                console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    parts.append(total(parts))
    title = "Programs captured whole, with results equal to eager"
    show(console, title, COLUMNS, [part.row() for part in parts], for_document=options.markdown)
