"""Owns the compiled graphs that generated backends store for the next process, by the key of the torch-level graph.

An entry has the call plan (`autograd/`) and the code (`codegen/`) of each graph; keys and files are those of
`graph_cache/`. A failure here costs a compile and nothing more.
"""

from __future__ import annotations

import functools
import importlib.metadata
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch.fx

from minidynamo import compat
from minidynamo.autograd.runtime import call_plan
from minidynamo.autograd.runtime.call_plan import CallPlan, CompiledCall
from minidynamo.autograd.runtime.partial_backward import WHOLE, BackwardPart, part_of
from minidynamo.codegen import compile_graph, stored
from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.config import Config
from minidynamo.core import artifacts
from minidynamo.core.events import notice, phase, publish
from minidynamo.core.records import record
from minidynamo.errors import BackendError, KernelsUnavailable
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.saved_tensor_hooks import Hooks, as_graph
from minidynamo.graph_cache import files
from minidynamo.graph_cache.encoding import Codec, Damaged, Json, NotStorable
from minidynamo.graph_cache.graphs import read_graph, write_graph
from minidynamo.graph_cache.key import Key, differences, key_of

CompileBackward = Callable[[torch.fx.GraphModule], BoxedCallable]
RECORDS = (*call_plan.RECORDS, *stored.RECORDS)


class StoredGraphs:
    """The cache as seen by one call of a backend: the code that `target` generates under `settings`, with inlined
    `hooks`.
    """

    def __init__(self, target: str, settings: Config, hooks: Hooks | None = None) -> None:
        self.target = target
        self.settings = settings
        self.hooks = hooks
        # Maps the callable of a graph to its compiled form and the text of its ATen graph.
        self.compiled_graphs: weakref.WeakKeyDictionary[BoxedCallable, tuple[compile_graph.CompiledGraph, str]] = (
            weakref.WeakKeyDictionary()
        )

    def remember(self, compiled: compile_graph.CompiledGraph, aten: str) -> None:
        """Records the compiled form of `compiled.call` while that callable is alive."""
        # Without the callable itself: the entry would keep its own key alive.
        self.compiled_graphs[compiled.call] = replace(compiled, call=_uncallable), aten

    def entry_for(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> StoredGraph | None:
        """Returns the entry of a graph, to read or write; None, after an event with the reason, if the graph cannot be
        stored.
        """
        try:
            with phase("cache"):
                key = key_of(gm, example_inputs, self._options(), self._tools(gm, example_inputs), self._hooks())
        except NotStorable as reason:
            publish("cache", "skip", reason=str(reason))
        except Exception as error:  # raised by an object of torch or of the user in the graph
            publish("cache", "skip", reason=f"its key cannot be written: {type(error).__name__}: {error}")
        else:
            return StoredGraph(key, self.compiled_graphs)
        return None

    def _options(self) -> dict[str, Any]:
        buckets = compat.bucket_limits()
        options = {} if buckets is None else {"buckets": buckets}
        return {"target": self.target, **options, **dict(self.settings.code_key())}

    def _hooks(self) -> dict[str, torch.fx.GraphModule]:
        if self.hooks is None:
            return {}
        return {"pack": as_graph(self.hooks.pack), "unpack": as_graph(self.hooks.unpack)}

    def _tools(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Mapping[str, str]:
        """Returns the versions of the tools that build the kernels."""
        if self.target == "triton" or (self.target == "auto" and _uses_gpu(gm, example_inputs)):
            return {"triton": importlib.metadata.version("triton")}
        try:
            tools = find_toolchain()
        except KernelsUnavailable:
            return {"compiler": "none"}
        return {"compiler": tools.version, "flags": " ".join(tools.flags), "cpu": tools.cpu}


def _uses_gpu(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    pending = [*example_inputs, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    flat = (item for value in pending for item in (value if isinstance(value, (list, tuple)) else (value,)))
    return any(isinstance(item, torch.Tensor) and item.device.type == "cuda" for item in flat)


def _notice_missing_toolchain() -> None:
    """Shows the notice of a missing compiler in this process, too: another process compiled the graph for torch's
    kernels.
    """
    try:
        find_toolchain()
    except KernelsUnavailable as unavailable:
        notice(unavailable.diagnostic)


def _unless_damaged(graph: Callable[[], torch.fx.GraphModule]) -> torch.fx.GraphModule | None:
    """Returns a stored graph; None if it cannot be read."""
    try:
        return graph()
    except Damaged:
        return None


def _needs_partial(plan: CallPlan) -> bool:
    """Returns whether the whole backward graph cannot replace a partial one."""
    return bool(plan.signature.graph.readers or plan.signature.graph.gradients)


def _description(program: str, stages: Iterable[str]) -> str:
    """Returns the description of an entry, for people."""
    return f"{program}, {' and '.join(dict.fromkeys(stage.partition(',')[0] for stage in stages))}"


def _uncallable(args: list[Any]) -> tuple[Any, ...]:
    raise AssertionError("a recorded compiled graph is not called")


@record(frozen=True)
class StoredGraph:
    """The disk entry of one torch-level graph, whether stored already or not."""

    key: Key
    compiled_graphs: weakref.WeakKeyDictionary[BoxedCallable, tuple[compile_graph.CompiledGraph, str]]
    #: Part of the entry -> its written form: an entry is written again for each compiled part of backward.
    forms: dict[str, Json] = field(default_factory=dict)

    @property
    def codec(self) -> Codec:
        """Returns the codec for the values of this graph."""
        return Codec(self.key.context, RECORDS)

    def read(self, compile_backward: CompileBackward) -> CompiledCall | None:
        """Loads the graph; returns None without a usable entry.

        If no backward graph was stored, it is compiled and stored when backward first runs.
        """
        with phase("cache"):
            content = files.read(self.key.name)
            found = None if content is None else self._load(content, compile_backward)
        if found is None:
            publish("cache", "miss", key=self.key.name, reason=self._why_not())
        else:
            files.count_use(self.key.name)
            publish("cache", "hit", key=self.key.name)
        return found

    def _load(self, content: Json, compile_backward: CompileBackward) -> CompiledCall | None:
        try:
            if content["key"] != self.key.text:
                raise Damaged("it was stored for another graph")
            decisions = content["decisions"]
            if not isinstance(decisions, list):
                raise Damaged("it does not say what was decided")
            if not self.key.symbols.decide(decisions):
                return None  # compiled under other decisions about symbols
            plan = call_plan.read_plan(content["plan"], self.codec)
            stages = {stage: self._load_stage(stage, form) for stage, form in content["stages"].items()}
            if "inference" in stages:
                return CompiledCall(plan, stages["inference"])
            graph = functools.cache(lambda: read_graph(content["backward"], self.key, inputs=len(plan.expected)))
            find = self._backward(plan, content, stages, compile_backward, graph)
            return CompiledCall(plan, stages["forward"], find, lambda: _unless_damaged(graph))
        except BackendError:
            return None  # a kernel cannot be built; compiling the graph raises the error
        except Exception as error:
            files.discard(self.key.name, f"{type(error).__name__}: {error}")
            return None

    def _backward(
        self,
        plan: CallPlan,
        content: Json,
        stages: dict[str, BoxedCallable],
        compile_backward: CompileBackward,
        graph: Callable[[], torch.fx.GraphModule],
    ) -> Callable[[BackwardPart], BoxedCallable | None]:
        """Returns a function that loads each part of backward from `stages`, or compiles and stores it. `graph` reads
        the whole graph."""
        if WHOLE.stage not in stages or _needs_partial(plan):
            graph()  # raise Damaged now: when backward runs, the original graph is gone

        def find(part: BackwardPart) -> BoxedCallable | None:
            if part.stage not in stages:
                try:
                    whole = graph()
                except Damaged as reason:
                    publish("cache", "skip", key=self.key.name, reason=f"no part of backward can be compiled: {reason}")
                    return None
                compiled = compile_backward(part_of(whole, len(plan.saved), part, plan.signature.graph))
                stages[part.stage] = compiled
                self._complete(content, part.stage, compiled)
            return stages[part.stage]

        return find

    def _load_stage(self, stage: str, form: Json) -> BoxedCallable:
        if form.get("target") == "aten":
            _notice_missing_toolchain()
        artifacts.write("aten", stage, self.key.context.read(form["aten"]))
        return stored.read_graph(form, self.codec)

    def _why_not(self) -> str:
        """Returns the differences from the key of another entry for the same program, if there is one."""
        for name in files.entries_of_program(self.key.program_digest):
            content = files.read(name)
            if isinstance(content, dict) and name != self.key.name:
                lines = differences(str(content.get("key")), self.key.text)
                return f"it was stored by another environment ({name}): {'; '.join(lines)}"
        return "nothing is stored for it"

    def write(
        self, plan: CallPlan, stages: Mapping[str, BoxedCallable], backward: torch.fx.GraphModule | None = None
    ) -> None:
        """Stores the compiled graph; if that is not possible, an event has the reason.

        `backward` is the graph to compile later, perhaps in another process.
        """
        if backward is not None and len(stages) == 1 and files.exists(self.key.name):
            return  # the existing entry may have more stages

        def content(codec: Codec) -> Json:
            return {
                "key": self.key.text,
                "description": _description(self.key.description, stages),
                "decisions": self.key.symbols.decided(),
                "plan": call_plan.write_plan(plan, codec),
                "stages": {
                    stage: self._once(stage, functools.partial(self._form, call, codec))
                    for stage, call in stages.items()
                },
                "backward": self._graph_form(backward, is_needed=WHOLE.stage not in stages or _needs_partial(plan)),
            }

        self._store(content)

    def _once(self, part: str, write: Callable[[], Json]) -> Json:
        if part not in self.forms:
            self.forms[part] = write()
        return self.forms[part]

    def _graph_form(self, backward: torch.fx.GraphModule | None, is_needed: bool) -> Json:
        try:
            return None if backward is None else self._once("backward graph", lambda: write_graph(backward, self.key))
        except NotStorable:
            if is_needed:
                raise
            return None  # other processes cannot compile partial backward graphs

    def _complete(self, content: dict[str, Json], stage: str, backward: BoxedCallable) -> None:
        """Stores an entry again, with an additional stage."""

        def completed(codec: Codec) -> Json:
            content["stages"] = {**content["stages"], stage: self._form(backward, codec)}
            return {**content, "description": _description(self.key.description, content["stages"])}

        self._store(completed)

    def _store(self, content: Callable[[Codec], Json]) -> None:
        try:
            with phase("cache"):
                if files.write(self.key.name, content(self.codec)):
                    publish("cache", "store", key=self.key.name)
        except NotStorable as reason:
            publish("cache", "skip", key=self.key.name, reason=str(reason))

    def _form(self, call: BoxedCallable, codec: Codec) -> Json:
        if call not in self.compiled_graphs:
            raise NotStorable("a part of it runs operation by operation")
        compiled, aten = self.compiled_graphs[call]
        return {**stored.write_graph(compiled, codec), "aten": codec.context.written(aten)}
