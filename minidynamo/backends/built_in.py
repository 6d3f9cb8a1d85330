"""Owns the built-in backends: captured graphs run as they are, as calls of ATen, as generated code, or by torch.

It is imported by the first compile with a built-in backend; `registry.py` has the names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch.fx

from minidynamo import compat
from minidynamo.autograd.aot import aot_compile
from minidynamo.autograd.graph.expanded_zeros import expand_zeros
from minidynamo.autograd.graph.graph_builder import copied
from minidynamo.autograd.graph.mutation import in_place
from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.reinplace.reuse import reinplace
from minidynamo.autograd.segments import compile_segments, has_cuts
from minidynamo.autograd.trace.decompositions import masked, splittable
from minidynamo.backends.stored_graphs import StoredGraphs
from minidynamo.codegen import compile_graph
from minidynamo.codegen.memory import plan
from minidynamo.config import Config, config
from minidynamo.core import artifacts
from minidynamo.core.events import notice, phase, publish
from minidynamo.core.records import record
from minidynamo.errors import BackendError, Diagnostic, GraphRefused, first_line
from minidynamo.graph.autograd_calls import registers_hook
from minidynamo.graph.boxed import BoxedCallable, first_location, graph_text, make_boxed, make_boxed_func
from minidynamo.graph.marks import COMPUTES_FIRST, FROM_DATA, IN_PLACE, IN_STEPS, RECORDS_WRITES
from minidynamo.graph.options import instead, on_error_in_force, save_policy_in_force
from minidynamo.graph.saved_tensor_hooks import to_inline
from minidynamo.graph.storage_resize import UNCOUNTED
from minidynamo.graph.torch_settings import switches_inference
from minidynamo.graph.unbacked_symints import has_index_tensors
from minidynamo.memory.graph_plan import graph_plan

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]

STAGES = ("forward", "backward", "inference")
"""The graphs that the autograd stage derives from a captured graph: two for training, or one for inference."""


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs the captured graph operation by operation and frees each value after its last use.

    A graph whose autograd records may have to be undone uses the autograd stage instead: that stage writes to inputs
    after all other work.
    """
    return aot_eager(gm, example_inputs) if RECORDS_WRITES in gm.meta else _interpreted(gm)


def _interpreted(gm: torch.fx.GraphModule) -> BoxedCallable:
    """Returns `make_boxed(gm)`, after publishing the predicted life of each value."""
    plan = graph_plan(gm, "captured")
    artifacts.write("memory", "captured", f"{plan}\n", ".txt", plan)
    return make_boxed(gm)


def _with_autograd(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Calls `aot_compile`. A graph that the autograd stage refuses runs operation by operation, after one notice.

    A graph that torch cannot trace with symbolic sizes may be traceable with the sizes of one call. The error is then
    raised for the caller to try again, unless a size depends on the values of tensors in any case.
    """
    compilers = {stage: artifacts.collecting(options[stage]) for stage in STAGES}
    try:
        with artifacts.discarded_on_error():
            compiled: Callable[..., Any] = aot_compile(
                gm,
                example_inputs,
                **{**options, **compilers},
                save_policy=save_policy_in_force.get(),
                hooks=to_inline.get(),
                buckets=compat.bucket_limits(),
            )
    except GraphRefused as refused:
        if refused.code == "MD401" and has_symbols(list(example_inputs)) and not _is_about_values(refused):
            raise
        refused.locate(first_location(gm))
        notice(replace(refused.diagnostic, what=f"a graph runs operation by operation: {refused.diagnostic.what}"))
        return _interpreted(gm)
    if not has_cuts(gm):  # after a cut, more is computed
        gm.meta[COMPUTES_FIRST] = True
    return compiled


def _is_about_values(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, compat.DynamicOutputShape):
        error = error.__cause__
    return error is not None


def _show(stage: str, graph: torch.fx.GraphModule) -> str:
    """Publishes the text of a graph that is about to be compiled, and returns the text."""
    text = graph_text(graph)
    artifacts.write("aten", stage, text)
    return text


def _with_input_writes(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns `graph`, after making ATen operators write to inputs wherever eager does."""
    reinplace(graph.graph)
    _mark_in_place(graph.graph)
    return graph


def _mark_in_place(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        node.meta[IN_PLACE] = in_place(node)


def _lowered() -> Collection[compat.OpOverload]:
    return compile_graph.lowered_ops() - masked()


@record(frozen=True)
class _Generator:
    """Generates code for the stages of one graph. The backward graph is compiled later, under the same settings."""

    #: "auto", "cpp", "triton" or "aten".
    target: str
    settings: Config
    on_error: str
    #: None if the graph is not stored.
    cache: StoredGraphs | None

    def compile(self, stage: str, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Returns the graph of a stage as a boxed callable."""
        text = _show(stage, graph)
        fallback_graph = None
        kernels = self.target != "aten"
        if kernels and graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            fallback_graph = functools.partial(_with_input_writes, copied(graph))
        if stage != "backward":
            reinplace(graph.graph, lambda op: not kernels or compile_graph.find(op) is None, own_memory=not kernels)
        if not kernels:
            expand_zeros(graph.graph)
        _mark_in_place(graph.graph)
        handing_over = plan.Handing.LARGE if stage == "backward" else plan.Handing.NONE
        if graph.meta.get(IN_STEPS):
            handing_over = plan.Handing.IN_STEPS
        try:
            with phase("codegen"), config.using(self.settings):
                compiled = compile_graph.compile_graph(
                    graph, target=self.target, name=stage, handing_over=handing_over, fallback_graph=fallback_graph
                )
        except Exception as error:
            failure = _stage_error(stage, error)
            if stage != "backward" or self.on_error == "raise":
                raise failure from (error.__cause__ or error)
            notice(failure.diagnostic)
            publish("fallback", f"{stage} graph", diagnostic=failure.diagnostic)
            return make_boxed(graph)
        if self.cache is not None and compiled.is_storable:
            self.cache.remember(compiled, text)
        return compiled.call


def _generated(target: str) -> Backend:
    kernels = target != "aten"

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        settings = config.current
        has_policy = save_policy_in_force.get() is not None  # no key contains a user's function
        stored = kernels and settings.graph_cache and not has_policy
        cache = StoredGraphs(target, settings, to_inline.get()) if stored else None
        generator = _Generator(target, settings, on_error_in_force.get(), cache)
        stages = {stage: functools.partial(generator.compile, stage) for stage in STAGES}
        return _with_autograd(
            gm,
            example_inputs,
            **stages,
            keep=_lowered if kernels else splittable,
            cache=cache,
            channels_last=kernels and settings.channels_last,
        )

    return backend


native = _generated("auto")
cpp = _generated("cpp")
triton = _generated("triton")
aot_eager = _generated("aten")


def inductor(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles the captured graph with torch's own code generator."""
    if any(map(_is_beyond_inductor, gm.graph.nodes)):
        return compile_segments(gm, example_inputs, _inductor_segment)
    refusal = "a graph runs operation by operation: torch's code generator takes no"
    if indexed := next(filter(has_index_tensors, gm.graph.nodes), None):
        what, why = f"{refusal} tensor as a scalar index", "The number is known when it runs."
        notice(Diagnostic("MD401", what, why, "Index with x[i[None]][0].", where=indexed.meta.get("user_location")))
        return make_boxed(gm)
    resized = next((node for node in gm.graph.nodes if node.target in UNCOUNTED), None)
    if resized is not None:  # inductor would resize copies
        what, why = f"{refusal} resized storages", "It turns writes into new values."
        notice(Diagnostic("MD402", what, why, 'Choose backend="native".', where=resized.meta.get("user_location")))
        return make_boxed(gm)
    return make_boxed_func(compat.compile_with_inductor(gm, list(example_inputs)))


def _is_beyond_inductor(node: torch.fx.Node) -> bool:
    """Returns whether torch's own code generator cannot compile a graph with this node."""
    return switches_inference(node.target) or FROM_DATA in node.meta or registers_hook(node)


def _inductor_segment(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a segment with torch's own code generator; operation by operation if it would make a float constant."""
    floats = any(isinstance(example, torch.SymFloat) for example in example_inputs)
    return make_boxed(gm) if floats else inductor(gm, example_inputs)


def _stage_error(stage: str, error: Exception) -> BackendError:
    """Returns `error` as a BackendError with the name of the graph and the folder of its texts."""
    where = f"Stage: code generation of the {stage} graph, whose texts are in {artifacts.code_dir()}"
    if isinstance(error, BackendError):
        return type(error)(replace(error.diagnostic, why=f"{error.diagnostic.why}\n{where}".strip()))
    what = f"no code could be generated for a graph: {type(error).__name__}"
    why = f"{first_line(error)}\n{where}"
    return BackendError(Diagnostic("MD520", what, why, instead("report it with the files in that folder")))
