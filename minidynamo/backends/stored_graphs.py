"""Owns what generated backends keep for the next process: call plan and code of each graph, found by the graph's key.

It joins the written forms of `autograd/` and `codegen/`; keys and files are those of `graph_cache/`. Whatever goes
wrong here costs a compile and never more.
"""

from __future__ import annotations

import functools
import importlib.metadata
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.fx

from minidynamo.autograd.runtime import call_plan
from minidynamo.autograd.runtime.call_plan import CallPlan, CompiledCall
from minidynamo.autograd.runtime.partial_backward import WHOLE, Part, part_of
from minidynamo.codegen import compile_graph, stored
from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.config import Config
from minidynamo.core import artifacts
from minidynamo.core.events import notice, phase, publish
from minidynamo.errors import BackendError, Diagnostic, GraphRefused, ToolchainMissing
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.saved_tensor_hooks import Hooks, as_graph
from minidynamo.graph_cache import files
from minidynamo.graph_cache.encoding import Codec, Damaged, Json, NotStorable
from minidynamo.graph_cache.graphs import read_graph, write_graph
from minidynamo.graph_cache.key import Key, differences, key_of

CompileBackward = Callable[[torch.fx.GraphModule], BoxedCallable]
RECORDS = (*call_plan.RECORDS, *stored.RECORDS)


class StoredGraphs:
    """The cache as one call of a backend uses it: what `target` makes of graphs, and of `hooks` that are put into them,
    under `settings`."""

    def __init__(self, target: str, settings: Config, hooks: Hooks | None = None) -> None:
        self.target = target
        self.settings = settings
        self.hooks = hooks
        # By the function that runs it: what a graph was compiled to, and the text of its ATen graph.
        self.made: weakref.WeakKeyDictionary[BoxedCallable, tuple[compile_graph.CompiledGraph, str]] = (
            weakref.WeakKeyDictionary()
        )

    def note(self, compiled: compile_graph.CompiledGraph, aten: str) -> None:
        """Remember what belongs to `compiled.call`, as long as that lives."""
        # Without the function itself, which would live for ever.
        self.made[compiled.call] = replace(compiled, call=_not_kept), aten

    def place(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> StoredGraph | None:
        """The place of a graph; None, after an event that says why, for one that cannot be stored."""
        try:
            with phase("cache"):
                key = key_of(gm, example_inputs, self._options(), self._tools(gm, example_inputs), self._hooks())
        except NotStorable as reason:
            publish("cache", "skip", reason=str(reason))
        except Exception as error:  # of torch's or the user's objects in the graph
            publish("cache", "skip", reason=f"its key cannot be written: {type(error).__name__}: {error}")
        else:
            return StoredGraph(key, self.made)
        return None

    def _options(self) -> dict[str, Any]:
        return {"target": self.target, **dict(self.settings.code_key())}

    def _hooks(self) -> dict[str, torch.fx.GraphModule]:
        if self.hooks is None:
            return {}
        return {"pack": as_graph(self.hooks.pack), "unpack": as_graph(self.hooks.unpack)}

    def _tools(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Mapping[str, str]:
        """What builds the kernels."""
        if self.target == "triton" or (self.target == "auto" and _uses_gpu(gm, example_inputs)):
            return {"triton": importlib.metadata.version("triton")}
        try:
            tools = find_toolchain()
        except ToolchainMissing:
            return {"compiler": "none"}
        return {"compiler": tools.version, "flags": " ".join(tools.flags), "cpu": tools.cpu}


def _uses_gpu(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    pending = [*example_inputs, *(node.meta.get("example_value") for node in gm.graph.nodes)]
    flat = (item for value in pending for item in (value if isinstance(value, (list, tuple)) else (value,)))
    return any(isinstance(item, torch.Tensor) and item.device.type == "cuda" for item in flat)


def _tell_why_there_are_no_kernels() -> None:
    """What the process was told that compiled a graph for torch's kernels; each one wants to know."""
    try:
        find_toolchain()
    except ToolchainMissing as missing:
        notice(missing.diagnostic)


def _needs_parts(plan: CallPlan) -> bool:
    """Whether the whole backward graph cannot take the place of a part."""
    return bool(plan.signature.kept_for or plan.signature.arrivals)


def _refusal(form: Json) -> GraphRefused:
    if not isinstance(form, list) or len(form) != 4 or not all(isinstance(text, str) for text in form):
        raise Damaged("it does not say why the graph is not compiled")
    return GraphRefused(Diagnostic(*form))


def _what(program: str, stages: Iterable[str]) -> str:
    """What an entry has, for people."""
    return f"{program}, {' and '.join(dict.fromkeys(stage.partition(',')[0] for stage in stages))}"


def _not_kept(args: list[Any]) -> tuple[Any, ...]:
    raise AssertionError("a compiled graph that was noted is not called")


@dataclass(frozen=True)
class StoredGraph:
    """What one torch-level graph was compiled to, on disk, or the place where it will be."""

    key: Key
    made: weakref.WeakKeyDictionary[BoxedCallable, tuple[compile_graph.CompiledGraph, str]]

    @property
    def codec(self) -> Codec:
        """What writes and reads the values of this graph."""
        return Codec(self.key.surroundings, RECORDS)

    def read(self, compile_backward: CompileBackward) -> CompiledCall | None:
        """The graph as it was stored, loaded; None when there is no entry that can be used.

        What nobody has differentiated yet has its backward graph compiled and stored when somebody does. Raises
        GraphRefused for a graph of which it is stored that it is not compiled.
        """
        with phase("cache"):
            content = files.read(self.key.name)
            found = None if content is None else self._load(content, compile_backward)
        if found is None:
            publish("cache", "miss", key=self.key.name, reason=self._why_not())
        else:
            files.note_use(self.key.name)
            publish("cache", "hit", key=self.key.name)
        if isinstance(found, GraphRefused):
            raise found
        return found

    def _load(self, content: Json, compile_backward: CompileBackward) -> CompiledCall | GraphRefused | None:
        try:
            if content["key"] != self.key.text:
                raise Damaged("it was stored for another graph")
            decisions = content["decisions"]
            if not isinstance(decisions, list):
                raise Damaged("it does not say what was decided")
            if not self.key.symbols.decide(decisions):
                return None  # it was compiled for numbers of another kind
            if "refused" in content:
                return _refusal(content["refused"])
            plan = call_plan.read_plan(content["plan"], self.codec)
            stages = {stage: self._load_stage(stage, form) for stage, form in content["stages"].items()}
            if "inference" in stages:
                return CompiledCall(plan, stages["inference"])
            return CompiledCall(plan, stages["forward"], self._backward(plan, content, stages, compile_backward))
        except BackendError:
            return None  # a kernel cannot be built; compiling the graph will tell
        except Exception as error:
            files.discard(self.key.name, f"{type(error).__name__}: {error}")
            return None

    def _backward(
        self, plan: CallPlan, content: Json, stages: dict[str, BoxedCallable], compile_backward: CompileBackward
    ) -> Callable[[Part], BoxedCallable | None]:
        """What gives each part of backward: one of `stages`, or compiled from the graph of the whole, and stored."""

        @functools.cache
        def graph() -> torch.fx.GraphModule:
            return read_graph(content["backward"], self.key, inputs=len(plan.expected))

        if WHOLE.stage not in stages or _needs_parts(plan):
            graph()  # which has to be right by now: the whole may need what is gone

        def find(part: Part) -> BoxedCallable | None:
            if part.stage not in stages:
                try:
                    whole = graph()
                except Damaged as reason:
                    publish("cache", "skip", key=self.key.name, reason=f"no part of backward can be compiled: {reason}")
                    return None
                signature = plan.signature
                made = compile_backward(part_of(whole, len(plan.saved), part, signature.kept_for, signature.arrivals))
                stages[part.stage] = made
                self._complete(content, part.stage, made)
            return stages[part.stage]

        return find

    def _load_stage(self, stage: str, form: Json) -> BoxedCallable:
        if form.get("target") == "aten":
            _tell_why_there_are_no_kernels()
        artifacts.write("aten", stage, self.key.surroundings.read(form["aten"]))
        return stored.read_graph(form, self.codec)

    def _why_not(self) -> str:
        """Where the key differs from that of an entry for the same program, if there is one."""
        for name in files.alike(self.key.program_digest):
            content = files.read(name)
            if isinstance(content, dict) and name != self.key.name:
                lines = differences(str(content.get("key")), self.key.text)
                return f"it was stored by another environment ({name}): {'; '.join(lines)}"
        return "nothing is stored for it"

    def write(
        self, plan: CallPlan, stages: Mapping[str, BoxedCallable], backward: torch.fx.GraphModule | None = None
    ) -> None:
        """Store what the graph was compiled to; an event says why that is not possible.

        `backward` is the graph of what is still to be compiled, perhaps by another process.
        """
        if backward is not None and len(stages) == 1 and files.exists(self.key.name):
            return  # it may have more

        def content(codec: Codec) -> Json:
            return {
                "key": self.key.text,
                "what": _what(self.key.what, stages),
                "decisions": self.key.symbols.decided(),
                "plan": call_plan.write_plan(plan, codec),
                "stages": {stage: self._form(call, codec) for stage, call in stages.items()},
                "backward": self._graph_form(backward, is_needed=WHOLE.stage not in stages or _needs_parts(plan)),
            }

        self._store(content)

    def refuse(self, why: Diagnostic) -> None:
        """Store that the graph is not compiled."""

        def content(codec: Codec) -> Json:
            return {
                "key": self.key.text,
                "what": f"{self.key.what}, refused: {why.code}",
                "decisions": self.key.symbols.decided(),
                "refused": [why.code, why.what, why.why, why.fix],
            }

        self._store(content)

    def _graph_form(self, backward: torch.fx.GraphModule | None, is_needed: bool) -> Json:
        try:
            return None if backward is None else write_graph(backward, self.key)
        except NotStorable:
            if is_needed:
                raise
            return None  # parts of it cannot be compiled by other processes

    def _complete(self, content: dict[str, Json], stage: str, backward: BoxedCallable) -> None:
        """Store an entry again, with a stage that it lacked."""

        def completed(codec: Codec) -> Json:
            content["stages"] = {**content["stages"], stage: self._form(backward, codec)}
            return {**content, "what": _what(self.key.what, content["stages"])}

        self._store(completed)

    def _store(self, content: Callable[[Codec], Json]) -> None:
        try:
            with phase("cache"):
                if files.write(self.key.name, content(self.codec)):
                    publish("cache", "store", key=self.key.name)
        except NotStorable as reason:
            publish("cache", "skip", key=self.key.name, reason=str(reason))

    def _form(self, call: BoxedCallable, codec: Codec) -> Json:
        if call not in self.made:
            raise NotStorable("a part of it runs operation by operation")
        compiled, aten = self.made[call]
        return {**stored.write_graph(compiled, codec), "aten": codec.surroundings.written(aten)}
