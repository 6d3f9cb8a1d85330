"""Owns the report about a whole program: compiled versions, graph breaks, recompiles, and times.

It only subscribes to events, and so includes functions that have died. `explain` reports on a single function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from minidynamo.core.events import Event
from minidynamo.errors import Diagnostic, counted

MOST_LISTED = 10  # diagnostics below one heading


class Report:
    """An event subscriber; printed, it is the report about all events so far."""

    def __init__(self) -> None:
        self.versions: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.graphs = 0
        self.stored = 0
        self.breaks: Counter[Diagnostic] = Counter()
        self.fallbacks: Counter[Diagnostic] = Counter()
        self.recompiles: Counter[Diagnostic] = Counter()

    def __call__(self, event: Event) -> None:
        if event.kind == "entry":
            self.versions[event.name] += 1
        elif event.kind == "phase_end":
            self.seconds[event.name] += event.data["seconds"]  # a Counter adds floats, too
        elif event.kind == "artifact":
            self.graphs += event.name == "graph"
        elif event.kind == "cache":
            self.stored += event.name == "hit"
        elif event.kind in _COUNTERS:
            getattr(self, _COUNTERS[event.kind])[event.data["diagnostic"]] += 1

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.versions and not self.fallbacks:
            yield "minidynamo compiled nothing."
            return
        yield (
            f"{counted(self.versions.total(), 'version')} of {counted(len(self.versions), 'frame')}, "
            f"{counted(self.graphs, 'graph')} ({self.stored} found on disk), "
            f"{counted(self.breaks.total(), 'graph break')}, {counted(self.recompiles.total(), 'recompile')}, "
            f"{sum(times for found, times in self.fallbacks.items() if found.code != 'MD523')} left to eager"
        )
        phases = ", ".join(f"{name} {seconds:.2g}" for name, seconds in self.seconds.most_common())
        yield f"compiled in {sum(self.seconds.values()):.2g} s: {phases}"
        yield from (f"{versions:>6} x {name}" for name, versions in self.versions.most_common(MOST_LISTED))
        for heading, found in (
            ("Graph breaks", self.breaks),
            ("What runs eagerly", self.fallbacks),
            ("Why frames were compiled again", self.recompiles),
        ):
            yield from _section(heading, found)


_COUNTERS = {"graph_break": "breaks", "fallback": "fallbacks", "recompile": "recompiles"}


def _section(heading: str, diagnostics: Counter[Diagnostic]) -> Iterator[str]:
    if not diagnostics:
        return
    yield f"\n{heading}, the most frequent first"
    for diagnostic, times in diagnostics.most_common(MOST_LISTED):
        yield f"\n{diagnostic.render()}{f'  ({times} times)' * (times > 1)}"
    if len(diagnostics) > MOST_LISTED:
        yield f"\nand {counted(len(diagnostics) - MOST_LISTED, 'other')}"
