"""Owns what users ask of a compiled function: where it breaks, why it recompiled, what it checks, keeps and costs.

It only looks at the record of the function, which `compiled_function.py` keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch.fx

from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.artifacts import STAGES, Artifact
from minidynamo.core.stats import Stats
from minidynamo.errors import Diagnostic, UnknownName, nearest
from minidynamo.frontend.dispatcher import Dispatcher
from minidynamo.guards.profile import FrameProfile, as_lines
from minidynamo.guards.recompiles import Recompile
from minidynamo.memory.plan import MemoryReport
from minidynamo.memory.saved import SavedTensors


class Record(Protocol):
    """What is kept of a compiled function: `breaks` says where graphs ended, `fallbacks` what runs as written."""

    name: str
    stats: Stats
    graphs: list[torch.fx.GraphModule]
    breaks: list[Diagnostic]
    fallbacks: list[Diagnostic]
    recompiles: list[Recompile]
    profiles: dict[FramePoint | None, FrameProfile]

    def dispatchers(self) -> dict[FramePoint | None, Dispatcher]:
        """That of each frame point; None is the call."""
        ...

    def texts(self, point: FramePoint | None) -> Sequence[Sequence[Artifact]]:
        """What was written for each entry of a frame."""
        ...

    def called(self) -> Iterable[Explanation]:
        """Those of the functions that are called at graph breaks."""
        ...

    def apart(self) -> tuple[Callable[..., Any], Record]:
        """The same, compiled anew with a record of its own."""
        ...


class Explanation:
    """What is known of a compiled function, the frames behind its graph breaks and the functions called there.

    Printed, it is an overview. Called, it compiles the function anew for these arguments and explains that.
    """

    def __init__(self, record: Record, *, owner: object = None, function: Callable[..., Any] | None = None) -> None:
        """`owner`: the object to which the function is bound. `function` is kept alive with what is known of it."""
        self._record = record
        self._owner = owner
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call the function as it would be compiled for this call alone, and explain that.

        What has been compiled before, its counters and its guards stay as they are; what the function itself does, it
        does once.
        """
        function, record = self._record.apart()
        function(*(() if self._owner is None else (self._owner,)), *args, **kwargs)
        return Explanation(record, owner=self._owner, function=function)

    @property
    def stats(self) -> Stats:
        """The counters."""
        return self._record.stats

    @property
    def graphs(self) -> list[torch.fx.GraphModule]:
        """The captured graphs, in the order of capture."""
        return self._record.graphs

    @property
    def graph_count(self) -> int:
        """How many graphs were captured."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """How often a graph ended before the function did."""
        return self.stats.graph_breaks

    @property
    def graph_failure_count(self) -> int:
        """How often a graph failed where the program does not, so that a frame ran again eagerly."""
        return self.stats.graph_failures

    @property
    def break_reasons(self) -> list[Diagnostic]:
        """Why graphs ended or functions run as written, with code, reason and your line."""
        return [*self._record.breaks, *self._record.fallbacks]

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        """What each graph calls, in order: functions, and methods by name."""
        calls = ("call_function", "call_method", "call_module")
        return [[node.target for node in gm.graph.nodes if node.op in calls] for gm in self.graphs]

    @property
    def op_count(self) -> int:
        """How many calls the graphs have together."""
        return sum(map(len, self.ops_per_graph))

    @property
    def out_guards(self) -> list[str]:
        """The lines of `guards()`."""
        return self.guards().splitlines()

    @property
    def compile_times(self) -> dict[str, float]:
        """Seconds by phase."""
        return dict(self.stats.seconds_by_phase)

    def breaks(self) -> str:
        """Where graphs end and what runs as written, with the reason and what to write instead."""
        counts = Counter(self.break_reasons)
        if not counts:
            return f"{self._record.name} has no graph breaks."
        times = {told: f"\n  In {count} versions." if count > 1 else "" for told, count in counts.items()}
        return "\n".join(f"{told.render()}{times[told]}" for told in counts)

    def why(self) -> str:
        """Why the function was compiled more than once: one paragraph per recompile, latest first."""
        recompiles = self._record.recompiles
        if not recompiles:
            return f"{self._record.name} was not recompiled."
        return "\n".join(recompile.diagnostic().render() for recompile in reversed(recompiles))

    def guards(self) -> str:
        """The guards of every entry, one per line, with the user's line that made each necessary.

        Those of functions called at graph breaks come last.
        """
        parts = []
        for dispatcher in self._record.dispatchers().values():
            for number, entry in enumerate(dispatcher.entries):
                parts.append(f"{dispatcher.name} [{number}]\n{entry.describe()}\n")
        return "\n".join([*parts, *filter(None, (called.guards() for called in self._record.called()))])

    def code(self, kind: str | None = None) -> str:
        """What was generated, each text below a heading with its file, in the order in which a call passes through it.

        A dispatcher is followed by the texts of its entries; functions called at graph breaks come last. A backward
        graph is there once it has been compiled.
        `kind` restricts it to one of `artifacts.STAGES`; another raises UnknownName.
        """
        if kind is not None and kind not in STAGES:
            fix = f"Use one of {', '.join(STAGES)}."
            raise UnknownName(Diagnostic("MD112", f"code() knows no kind {kind!r}.{nearest(kind, STAGES)}", fix=fix))
        shown: list[Artifact] = []
        # The text of a dispatcher changes with each entry; what was collected may be an old one.
        order = [stage for stage in STAGES if stage != "dispatch"]
        for point, dispatcher in self._record.dispatchers().items():
            path = dispatcher.function.__code__.co_filename
            shown.append(Artifact("dispatch", dispatcher.name, path, dispatcher.source()))
            for texts in self._record.texts(point):
                shown += sorted((t for t in texts if t.kind in order), key=lambda text: order.index(text.kind))
        sections = [text.section() for text in shown if kind in (None, text.kind)]
        callees = [called.code(kind) for called in self._record.called()]
        return "\n".join([*sections, *filter(None, callees)])

    def saved(self) -> SavedTensors:
        """Every tensor that forward graphs keep for backward: shape, dtype, bytes, operation, your line, and why."""
        return SavedTensors([value for artifact in self._written("saved") for value in artifact.data])

    def memory_plan(self) -> MemoryReport:
        """Each buffer of the generated programs: bytes, birth, death, whose memory it takes over; and the peak.

        A backward graph is there once it has been compiled. Backends that generate no code plan nothing.
        """
        return MemoryReport(artifact.data for artifact in self._written("memory"))

    def _written(self, kind: str) -> list[Artifact]:
        """What was written of one kind, for every entry; functions called at graph breaks come last."""
        points = self._record.profiles
        own = [text for point in points for texts in self._record.texts(point) for text in texts if text.kind == kind]
        return own + [text for called in self._record.called() for text in called._written(kind)]

    def profile(self) -> str:
        """The sizes and numbers that captures have seen, `?` for those that varied."""
        profiles = self._record.profiles
        names = {point: self._record.name + (f" at {name_of_point(point)}" if point else "") for point in profiles}
        lines = as_lines({names[point]: profile for point, profile in profiles.items()})
        return "\n".join([*lines, *filter(None, (called.profile() for called in self._record.called()))])

    def __repr__(self) -> str:
        return f"<explanation of {self._record.name}: {self.stats}>"

    def __str__(self) -> str:
        stats, saved = self.stats, self.saved()
        phases = ", ".join(f"{name} {seconds:.2g}" for name, seconds in stats.seconds_by_phase.items())
        lines = [
            f"{self._record.name}: {stats}",
            f"  graphs: {stats.graphs}, graph breaks: {stats.graph_breaks}, frames given up: {stats.fallbacks}",
            f"  compiled in {sum(stats.seconds_by_phase.values()):.2g} s: {phases}" if phases else "  not compiled yet",
        ]
        if saved:
            lines.append(f"  kept for backward: {len(saved)} tensors, {saved.bytes:,} bytes")
        lines += [self.breaks()] * bool(self._record.breaks or self._record.fallbacks)
        return "\n".join([*lines, *([self.why()] * bool(self._record.recompiles))])


def name_of_point(point: FramePoint | None) -> str:
    """A frame point as it is written into profiles."""
    return "0" if point is None else f"{point.index}({', '.join(point.parameters)})"
