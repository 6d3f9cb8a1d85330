"""Owns the answers about a compiled function: its breaks, recompiles, guards, code, saved tensors and costs.

It only reads the record of the function, which `compiled_function.py` keeps.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.fx

from minidynamo.core.artifacts import STAGES, Artifact
from minidynamo.core.directives import COMPILED
from minidynamo.core.stats import Stats
from minidynamo.errors import Diagnostic, UnknownName, counted, nearest
from minidynamo.frontend.compiled_function import CompiledFunction, name_of_point
from minidynamo.graph import collectives
from minidynamo.guards.profile import as_lines
from minidynamo.memory.plan import MemoryReport, SavedTensors

# Methods of `Explanation` that become attributes of a compiled function.
_ANSWERS = ("breaks", "code", "guards", "memory_plan", "profile", "saved", "why")
# Names of other callables in one line of `shared()`.
_MOST_NAMES = 4


def with_answers(function: types.FunctionType) -> types.FunctionType:
    """Adds the answers, as attributes, to a compiled function."""
    record: CompiledFunction = vars(function)[COMPILED]
    explanation = Explanation(record)  # not stored in the record: that would be a reference cycle
    function.__dict__.update({name: getattr(explanation, name) for name in _ANSWERS})
    function.__dict__.update(
        py_func=record.py_func,
        stats=record.stats,
        graphs=record.graphs,
        explain=lambda: explanation,
        freeze=record.freeze,
        reset=record.reset,
    )
    return function


class Explanation:
    """Explains a compiled function, the frames after graph breaks and the functions called there.

    Printed, it is an overview. Called, it compiles the function again for the given arguments and explains the call.
    """

    def __init__(
        self, record: CompiledFunction, *, owner: object = None, function: Callable[..., Any] | None = None
    ) -> None:
        """`owner`: the object to which the function is bound. `function`: kept alive together with the explanation."""
        self._record = record
        self._owner = owner
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        """Compiles the function for this call alone, runs the call once, and explains it.

        Existing entries, counters and guards of the function do not change.
        """
        function, record = self._record.compile_again()
        function(*(() if self._owner is None else (self._owner,)), *args, **kwargs)
        return Explanation(record, owner=self._owner, function=function)

    @property
    def stats(self) -> Stats:
        """Returns the counters."""
        return self._record.stats

    @property
    def graphs(self) -> list[torch.fx.GraphModule]:
        """Returns the captured graphs, in the order of capture."""
        return self._record.graphs

    @property
    def graph_count(self) -> int:
        """Returns the number of captured graphs."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """Returns how often a graph ended before the function did."""
        return self.stats.graph_breaks

    @property
    def graph_failure_count(self) -> int:
        """Returns how often a graph failed although the program does not; a frame was then rerun eagerly."""
        return self.stats.graph_failures

    @property
    def break_reasons(self) -> list[Diagnostic]:
        """Returns why graphs ended or functions run eagerly, with code, reason and your line."""
        return [*self._record.breaks, *self._record.fallbacks]

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        """Returns the calls of each graph, in order: functions, and methods by name."""
        calls = ("call_function", "call_method", "call_module")
        return [[node.target for node in gm.graph.nodes if node.op in calls] for gm in self.graphs]

    @property
    def op_count(self) -> int:
        """Returns the total number of calls in the graphs."""
        return sum(map(len, self.ops_per_graph))

    @property
    def communication(self) -> dict[str, int]:
        """Returns how many nodes of the graphs communicate with other ranks, by name: collectives, and the hooks of
        sharded modules."""
        nodes = (node for gm in self.graphs for node in gm.graph.nodes)
        found = (node.target for node in nodes if collectives.is_collective(node))
        return dict(Counter(str(getattr(target, "__name__", target)) for target in found))

    @property
    def out_guards(self) -> list[str]:
        """Returns the lines of `guards()`."""
        return self.guards().splitlines()

    @property
    def compile_times(self) -> dict[str, float]:
        """Returns seconds by phase."""
        return dict(self.stats.seconds_by_phase)

    def breaks(self) -> str:
        """Lists where graphs end and which frames run eagerly, with the reason and a fix."""
        counts = Counter(self.break_reasons)
        if not counts:
            return f"{self._record.name} has no graph breaks."
        times = {reason: f"\n  In {count} versions." if count > 1 else "" for reason, count in counts.items()}
        return "\n".join(f"{reason.render()}{times[reason]}" for reason in counts)

    def why(self) -> str:
        """Explains each recompile: one paragraph per recompile, latest first."""
        recompiles = self._record.recompiles
        if not recompiles:
            return f"{self._record.name} was not recompiled."
        return "\n".join(recompile.diagnostic().render() for recompile in reversed(recompiles))

    def shared(self) -> str:
        """Lists the versions that equal callables use, too: modules of one class, closures over one code object."""
        lines = []
        for point, dispatcher in self._record.dispatchers().items():
            for number, entry in enumerate(dispatcher.entries):
                others = [record.name for record in self._record.sharers(entry, point)]
                if others:
                    shown = ", ".join(others[:_MOST_NAMES]) + ", ..." * (len(others) > _MOST_NAMES)
                    lines.append(f"{dispatcher.name} [{number}]: shared with {counted(len(others), 'other')}: {shown}")
        return "\n".join([*lines, *filter(None, (called.shared() for called in self._called()))])

    def guards(self) -> str:
        """Lists the guards of every entry, one per line, with the user's line that required the guard.

        Guards of functions called at graph breaks are last.
        """
        parts = []
        for dispatcher in self._record.dispatchers().values():
            for number, entry in enumerate(dispatcher.entries):
                parts.append(f"{dispatcher.name} [{number}]\n{entry.describe()}\n")
        return "\n".join([*parts, *filter(None, (called.guards() for called in self._called()))])

    def code(self, kind: str | None = None) -> str:
        """Returns the generated code, each text below a heading with its file, in the order of a call.

        The texts of a dispatcher's entries follow the dispatcher; functions called at graph breaks are last. A backward
        graph is included once it has been compiled.

        `kind` selects one of `artifacts.STAGES`; any other value raises UnknownName.
        """
        if kind is not None and kind not in STAGES:
            fix = f"Use one of {', '.join(STAGES)}."
            raise UnknownName(Diagnostic("MD112", f"code() knows no kind {kind!r}.{nearest(kind, STAGES)}", fix=fix))
        shown: list[Artifact] = []
        # The text of a dispatcher changes with each entry; a collected text may be outdated.
        order = [stage for stage in STAGES if stage != "dispatch"]
        for point, dispatcher in self._record.dispatchers().items():
            path = dispatcher.function.__code__.co_filename
            shown.append(Artifact("dispatch", dispatcher.name, path, dispatcher.source()))
            for texts in self._record.texts(point):
                shown += sorted((t for t in texts if t.kind in order), key=lambda text: order.index(text.kind))
        sections = [text.section() for text in shown if kind in (None, text.kind)]
        callees = [called.code(kind) for called in self._called()]
        return "\n".join([*sections, *filter(None, callees)])

    def saved(self) -> SavedTensors:
        """Returns every tensor that forward graphs save for backward: shape, dtype, bytes, operation, your line, and
        why. Of several versions the newest counts.
        """
        return SavedTensors([value for artifact in self._artifacts_of("saved") for value in artifact.data])

    def memory_plan(self) -> MemoryReport:
        """Returns the plan of each buffer of the generated programs: bytes, birth, death, reused memory; and the peak.

        A backward graph is included once it has been compiled. Of several versions the newest counts. Backends that
        generate no code plan nothing.
        """
        return MemoryReport(artifact.data for artifact in self._artifacts_of("memory"))

    def _called(self) -> list[Explanation]:
        """Returns the explanations of the functions that were compiled at graph breaks."""
        return [Explanation(record) for record in self._record.called()]

    def _artifacts_of(self, kind: str) -> list[Artifact]:
        """Returns the artifacts of one kind: for every frame of a call, those of the newest version that has any.
        Functions called at graph breaks are last."""
        own: list[Artifact] = []
        for point in self._record.profiles:
            versions = ([text for text in texts if text.kind == kind] for texts in reversed(self._record.texts(point)))
            own += next(filter(None, versions), [])
        return own + [text for called in self._called() for text in called._artifacts_of(kind)]

    def profile(self) -> str:
        """Returns the sizes and numbers seen by captures, with `?` for values that varied."""
        profiles = self._record.profiles
        names = {point: self._record.name + (f" at {name_of_point(point)}" if point else "") for point in profiles}
        lines = as_lines({names[point]: profile for point, profile in profiles.items()})
        return "\n".join([*lines, *filter(None, (called.profile() for called in self._called()))])

    def __repr__(self) -> str:
        return f"<explanation of {self._record.name}: {self.stats}>"

    def __str__(self) -> str:
        stats, saved = self.stats, self.saved()
        phases = ", ".join(f"{name} {seconds:.2g}" for name, seconds in stats.seconds_by_phase.items())
        nothing = "nothing compiled here" if stats.shared else "not compiled yet"
        lines = [
            f"{self._record.name}: {stats}",
            f"  graphs: {stats.graphs}, graph breaks: {stats.graph_breaks}, frames left to eager: {stats.fallbacks}",
            f"  compiled in {sum(stats.seconds_by_phase.values()):.2g} s: {phases}" if phases else f"  {nothing}",
        ]
        if found := self.communication:
            lines.append(f"  communicates in graphs: {', '.join(f'{name} {count}' for name, count in found.items())}")
        if saved:
            lines.append(f"  saved for backward: {len(saved)} tensors, {saved.bytes:,} bytes")
        for stages in (artifact.data for artifact in self._artifacts_of("stages")):
            counts = ", ".join(str(len(stage)) for stage in stages)
            lines.append(f"  gradients leave backward in {len(stages)} stages, as buckets are full: {counts}")
        lines += [f"  {line}" for line in self.shared().splitlines()]
        lines += [self.breaks()] * bool(self._record.breaks or self._record.fallbacks)
        return "\n".join([*lines, *([self.why()] * bool(self._record.recompiles))])
