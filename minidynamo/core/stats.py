"""Owns the counters of one compiled function: its calls, and the cost of their guards.

Counts nothing itself: dispatchers and compile stages do.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import field, fields

from minidynamo.core.locks import ForkSafeLock
from minidynamo.core.records import record
from minidynamo.errors import counted

# The guards of the 16th frame are timed, and from then on those of each 1024th.
_FIRST_TIMED, _TIMING_INTERVAL = 16, 1024
_lock = ForkSafeLock()


class Counter:
    """Counts frames. A frame takes an item of `ticks`, which is one instruction without a lock. The frame that finds no
    item calls `renew`, and its guards are timed.
    """

    def __init__(self) -> None:
        self._end = _FIRST_TIMED - 1
        self.ticks = itertools.repeat(None, self._end)

    def count(self) -> int:
        """Returns the number of frames so far."""
        return self._end - operator.length_hint(self.ticks)

    def renew(self) -> None:
        """Counts a frame, and replaces `ticks` if no items are left."""
        with _lock:
            if None not in self.ticks:
                self._end += _TIMING_INTERVAL
                self.ticks = itertools.repeat(None, _TIMING_INTERVAL - 1)


class _Counts:
    """A group of counters, whose sum is read together."""

    def __init__(self) -> None:
        self._counts: list[Counter] = []
        self._forgotten = 0

    def new(self) -> Counter:
        """Returns a new counter."""
        self._counts.append(Counter())
        return self._counts[-1]

    def total(self) -> int:
        """Returns the sum of all counters since the last reset."""
        return sum(each.count() for each in self._counts) - self._forgotten

    def take_back(self) -> None:
        """Takes back one count."""
        with _lock:
            self._forgotten += 1

    def reset(self) -> None:
        """Starts from zero; the counters stay in use."""
        self._forgotten += self.total()


@record
class Stats:
    """Counters of one compiled function, with its resume functions and the functions compiled at graph breaks."""

    #: Frames that no entry fitted.
    misses: int = 0
    #: Entries created.
    compiles: int = 0
    #: Entries created for a frame that had entries.
    recompiles: int = 0
    #: Entries that equal callables have compiled, and that this function uses.
    shared: int = 0
    #: Misses that ran eagerly.
    native_runs: int = 0
    #: Captured graphs.
    graphs: int = 0
    graph_breaks: int = 0
    #: Frames that permanently run eagerly.
    fallbacks: int = 0
    #: Calls of a graph that raised where eager does not, so that the frame was rerun.
    graph_failures: int = 0
    #: Graphs loaded from disk.
    cache_hits: int = 0
    #: Graphs that could have been on disk, and had to be compiled.
    cache_misses: int = 0
    #: Calls, one of a thousand, whose guards were timed; `guard_ns` is the average.
    timed_calls: int = 0
    #: Compile time per phase, without inner phases.
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    _timed_ns: int = field(default=0, repr=False)
    _of_calls: _Counts = field(default_factory=_Counts, repr=False)
    _of_other_frames: _Counts = field(default_factory=_Counts, repr=False)

    @property
    def calls(self) -> int:
        """Returns the number of calls of the function, without calls that permanently run eagerly."""
        return self._of_calls.total()

    @property
    def frames(self) -> int:
        """Returns the number of entered frames: hits and misses.

        A call enters a frame, one more after each graph break, and one per function that is called at a break.
        """
        return self.calls + self._of_other_frames.total()

    @property
    def hits(self) -> int:
        """Returns the number of frames that an entry served at once."""
        return self.frames - self.misses

    @property
    def guard_ns(self) -> float:
        """Returns the nanoseconds for checking the guards of a frame; 0 until a call has been timed."""
        return self._timed_ns / self.timed_calls if self.timed_calls else 0.0

    def counter(self, *, of_calls: bool) -> Counter:
        """Returns a new counter of frames.

        `of_calls`: the frame is a call of the function itself, not a frame after a break.
        """
        return self._counts(of_calls).new()

    def take_back(self, *, of_calls: bool) -> None:
        """Takes back the count of a frame that is entered again, or runs elsewhere."""
        self._counts(of_calls).take_back()

    def _counts(self, of_calls: bool) -> _Counts:
        return self._of_calls if of_calls else self._of_other_frames

    def add_timed_call(self, nanoseconds: int) -> None:
        """Records the time of the guards of one call."""
        self.timed_calls += 1
        self._timed_ns += nanoseconds

    def reset(self) -> None:
        """Starts from zero."""
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
        frames = f", {counted(self.frames, 'frame')}" if self.frames != self.calls else ""
        happened = (
            f"{counted(self.hits, 'hit')}, {counted(self.misses, 'miss')}, {counted(self.recompiles, 'recompile')}"
        )
        happened += f", {counted(self.graph_failures, 'graph failure')}" if self.graph_failures else ""
        return f"{counted(self.calls, 'call')}{frames}, {happened}{guards}"
