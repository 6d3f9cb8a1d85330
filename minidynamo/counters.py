"""Owns the counters of one compiled function: what happened to its calls, and what checking them costs.

It counts nothing itself: dispatchers and whoever compiles do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, fields


@dataclass
class Stats:
    """What happened to one compiled function, its resume points and the functions compiled behind breaks included.

    calls: how often one of their frames was entered; those that run as written for good are not counted
    hits: calls that an entry served at once
    misses: calls that no entry fitted
    compiles: entries made
    recompiles: those made for a frame that had entries
    native_runs: misses that ran as the user wrote it
    graphs, graph_breaks: what was captured, and where a graph ended
    fallbacks: frames that were given up
    cache_hits, cache_misses: graphs that came from the disk, and those that had to be made
    guard_ns: nanoseconds that the guards of a call take, over `timed_calls`, one of a thousand
    seconds_by_phase: the time of compiling, each phase without those inside
    """

    misses: int = 0
    compiles: int = 0
    recompiles: int = 0
    native_runs: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    fallbacks: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    timed_calls: int = 0
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    _timed_ns: int = field(default=0, repr=False)
    _counts: list[itertools.count[int]] = field(default_factory=list, repr=False)
    _forgotten: int = field(default=0, repr=False)

    @property
    def calls(self) -> int:
        """How often a frame was entered."""
        return sum(map(_position, self._counts)) - self._forgotten

    @property
    def hits(self) -> int:
        """How many calls an entry served at once."""
        return self.calls - self.misses

    @property
    def guard_ns(self) -> float:
        """Nanoseconds that checking the guards of a call takes; 0 as long as no call has been timed."""
        return self._timed_ns / self.timed_calls if self.timed_calls else 0.0

    def counter(self) -> Callable[[], int]:
        """A function that counts one more call and gives the number of calls so far of its own."""
        count = itertools.count(1)
        self._counts.append(count)
        return count.__next__

    def add_timed_call(self, nanoseconds: int) -> None:
        """Note what the guards of one call took."""
        self.timed_calls += 1
        self._timed_ns += nanoseconds

    def reset(self) -> None:
        """Start from zero."""
        counts = self._counts
        vars(self).update(vars(Stats()))
        self._counts = counts
        self._forgotten = sum(map(_position, counts))

    def __repr__(self) -> str:
        counted = {"calls": self.calls, "hits": self.hits}
        counted |= {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        return f"Stats({', '.join(f'{name}={value!r}' for name, value in counted.items())})"

    def __str__(self) -> str:
        guards = f", guards {self.guard_ns / 1000:.1f} us" if self.timed_calls else ""
        return f"{self.calls} calls, {self.hits} hits, {self.misses} misses, {self.recompiles} recompiles{guards}"


def _position(count: itertools.count[int]) -> int:
    """How often `next` was called; looking at the text of a counter does not move it."""
    return int(repr(count).removeprefix("count(").removesuffix(")")) - 1
