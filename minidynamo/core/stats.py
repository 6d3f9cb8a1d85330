"""Owns the counters of one compiled function: what happened to its calls, and what checking them costs.

It counts nothing itself: dispatchers and whoever compiles do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, fields


class _Counts:
    """Counters that each are advanced by one C call, without a lock, and that are read together."""

    def __init__(self) -> None:
        self._counts: list[itertools.count[int]] = []
        self._forgotten = 0

    def new(self) -> Callable[[], int]:
        """A function that counts one more and gives its own number so far."""
        count = itertools.count(1)
        self._counts.append(count)
        return count.__next__

    def total(self) -> int:
        """What all have counted since the last reset."""
        return sum(map(_position, self._counts)) - self._forgotten

    def reset(self) -> None:
        """Start from zero; the functions that count stay in use."""
        self._forgotten += self.total()


@dataclass
class Stats:
    """What happened to one compiled function, its resume points and the functions compiled behind breaks included.

    calls: how often the function was called; calls that run as written for good are not counted
    frames: how often one of its frames was entered: as often as it was called, once more behind each graph break, and
        once for each function that is compiled where it is called at a break
    hits: frames that an entry served at once
    misses: frames that no entry fitted; together with the hits these are all
    compiles: entries made
    recompiles: those made for a frame that had entries
    native_runs: misses that ran as the user wrote it
    graphs, graph_breaks: what was captured, and where a graph ended
    fallbacks: frames that were given up
    graph_failures: calls of a graph that failed where the program does not, so that the frame ran again eagerly
    cache_hits, cache_misses: graphs that came from the disk, and those that had to be made
    guard_ns: nanoseconds that the guards of a frame take, over `timed_calls`, one of a thousand
    seconds_by_phase: the time of compiling, each phase without those inside
    """

    misses: int = 0
    compiles: int = 0
    recompiles: int = 0
    native_runs: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    fallbacks: int = 0
    graph_failures: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    timed_calls: int = 0
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    _timed_ns: int = field(default=0, repr=False)
    _of_calls: _Counts = field(default_factory=_Counts, repr=False)
    _of_other_frames: _Counts = field(default_factory=_Counts, repr=False)

    @property
    def calls(self) -> int:
        """How often the function was called."""
        return self._of_calls.total()

    @property
    def frames(self) -> int:
        """How often one of its frames was entered."""
        return self.calls + self._of_other_frames.total()

    @property
    def hits(self) -> int:
        """How many frames an entry served at once."""
        return self.frames - self.misses

    @property
    def guard_ns(self) -> float:
        """Nanoseconds that checking the guards of a frame takes; 0 as long as none has been timed."""
        return self._timed_ns / self.timed_calls if self.timed_calls else 0.0

    def counter(self, *, of_calls: bool) -> Callable[[], int]:
        """A function that counts one more frame and says how many it has counted.

        `of_calls`: the frame is that of a call of the function itself, not one behind a break.
        """
        return (self._of_calls if of_calls else self._of_other_frames).new()

    def add_timed_call(self, nanoseconds: int) -> None:
        """Note what the guards of one call took."""
        self.timed_calls += 1
        self._timed_ns += nanoseconds

    def reset(self) -> None:
        """Start from zero."""
        counts = self._of_calls, self._of_other_frames
        vars(self).update(vars(Stats()))
        self._of_calls, self._of_other_frames = counts
        for each in counts:
            each.reset()

    def __repr__(self) -> str:
        counted = {"calls": self.calls, "frames": self.frames, "hits": self.hits}
        counted |= {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        return f"Stats({', '.join(f'{name}={value!r}' for name, value in counted.items())})"

    def __str__(self) -> str:
        guards = f", guards {self.guard_ns / 1000:.1f} us" if self.timed_calls else ""
        frames = f", {self.frames} frames" if self.frames != self.calls else ""
        happened = f"{self.hits} hits, {self.misses} misses, {self.recompiles} recompiles"
        happened += f", {self.graph_failures} failures of graphs" if self.graph_failures else ""
        return f"{self.calls} calls{frames}, {happened}{guards}"


def _position(count: itertools.count[int]) -> int:
    """How often `next` was called; looking at the text of a counter does not move it."""
    return int(repr(count).removeprefix("count(").removesuffix(")")) - 1
