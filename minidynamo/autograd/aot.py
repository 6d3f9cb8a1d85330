"""Owns the stages between a torch-level graph and a boxed callable that runs compiled forward, backward or inference
graphs.

`aot_compile` runs the stages in order. It traces and splits graphs; the caller passes compile functions for the graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.backward_stages import in_stages
from minidynamo.autograd.build_signature import (
    inference_signature,
    keeps_all,
    mark_result_gradients,
    node_graph,
    with_node_graph,
)
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.functionalize import functionalize
from minidynamo.autograd.functional.joint_graph import Forward, Joint
from minidynamo.autograd.functional.outputs import Results, plan_outputs, result_strides
from minidynamo.autograd.functional.storage_resize import StorageSizes, storage_sizes
from minidynamo.autograd.functional.written_inputs import final_values
from minidynamo.autograd.graph.inputs import InputLayout, flatten_inputs, layout_of, unflatten_inputs
from minidynamo.autograd.graph.provenance import line_of_node
from minidynamo.autograd.graph.signature import GraphSignature, Unpacked
from minidynamo.autograd.layout.channels_last import lay_out_channels_last
from minidynamo.autograd.partition.hook_graphs import HookTracer
from minidynamo.autograd.partition.packing import mark_inputs, pack, readers_of_tensors, saved_in_eager, unpacking
from minidynamo.autograd.partition.partition import Partition, forward_graph, partition, writable_by_caller
from minidynamo.autograd.partition.rng_replay import draw_from_states
from minidynamo.autograd.partition.saving import SavePolicy
from minidynamo.autograd.runtime import graph_call
from minidynamo.autograd.runtime.backward_call import BackwardGraphs
from minidynamo.autograd.runtime.call_plan import CallPlan, CompiledCall
from minidynamo.autograd.runtime.derivatives import Derivatives
from minidynamo.autograd.runtime.double_backward import (
    DoubleBackward,
    HigherOrderPlan,
    extra_reads,
    held_per_result,
    plan_higher_order,
)
from minidynamo.autograd.runtime.partial_backward import BackwardPart, part_of
from minidynamo.autograd.segments import compile_segments, has_cuts
from minidynamo.autograd.trace.decompositions import decomposition_table
from minidynamo.autograd.trace.joint import Trace, trace_joint
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import phase
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph.autograd_calls import differentiates_again
from minidynamo.graph.boxed import BoxedCallable, as_boxed, make_boxed, mark_boxed
from minidynamo.graph.higher_order import CHECKPOINTS, is_reentrant
from minidynamo.graph.saved_tensor_hooks import Hooks, without_hooks
from minidynamo.graph.torch_settings import settings
from minidynamo.memory.plan import SavedTensors

AtenCompiler = Callable[[fx.GraphModule, Sequence[Any]], BoxedCallable]
Keep = Callable[[], Collection[OpOverload]]


@record(frozen=True)
class AotGraphs:
    """The results of the autograd stage for one torch-level graph."""

    #: How nested inputs are flattened.
    layout: InputLayout
    #: How to call the compiled graphs.
    signature: GraphSignature
    #: The forward graph, or the inference graph when no gradient was traced.
    forward: fx.GraphModule
    #: None for an inference graph.
    backward: fx.GraphModule | None
    #: None for an inference graph.
    partition: Partition | None
    #: True when the grad mode is on and an input requires grad, although no gradient was traced.
    without_grad: bool = False
    #: How backward is differentiated again.
    higher: HigherOrderPlan = field(default_factory=HigherOrderPlan)


class CacheEntry(Protocol):
    """The entry of one graph in a graph cache: the compiled code, if an earlier process stored some."""

    def read(self, compile_backward: Callable[[fx.GraphModule], BoxedCallable]) -> CompiledCall | None:
        """Returns the stored code, ready to be called, or None when the entry is empty.

        A backward graph that was stored as a graph is compiled with `compile_backward` at its first call.
        """
        ...

    def write(
        self, plan: CallPlan, stages: Mapping[str, BoxedCallable], backward: fx.GraphModule | None = None
    ) -> None:
        """Stores a plan with its compiled `stages`: "inference", or "forward" and the compiled parts of backward by
        name (`Part.stage`). `backward` is the backward graph."""
        ...


class GraphCache(Protocol):
    """A store of compiled code that outlives a process."""

    def entry_for(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CacheEntry | None:
        """Returns the entry of a graph under the current modes; None for a graph that cannot be stored."""
        ...


_HOOKS_OF_CHECKPOINTS = Diagnostic(
    "MD414",
    "it has a checkpoint, and hooks for saved tensors that would be put into it",
    why="A checkpoint has hooks of its own, which replace yours inside of it.",
    fix="Leave the checkpoint out, or pass plain functions as hooks.",
)


def aot_compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: AtenCompiler,
    backward: AtenCompiler,
    inference: AtenCompiler,
    keep: Keep = frozenset,
    cache: GraphCache | None = None,
    save_policy: SavePolicy | None = None,
    hooks: Hooks | None = None,
    channels_last: bool = False,
    buckets: Sequence[int] | None = None,
) -> BoxedCallable:
    """Compiles a torch-level graph; the result takes one list with a value per placeholder.

    `example_inputs` are fake tensors, or lists of fake tensors for list placeholders. The other parameters:

    - `forward` and `backward` compile the graphs for training, `inference` compiles the graph when no input requires
      grad. Each gets a functional ATen graph and fake inputs. Each returns a boxed callable; a plain callable is
      adapted, with a notice. `backward` is called at the first backward, so its errors reach the user there: a caller
      that prefers eager execution must return an eager callable.
    - `keep` returns the operators that are not decomposed.
    - `cache` may hold compiled code of an equal graph.
    - `hooks` are hooks for saved tensors. Every call runs under the same hooks, so the graphs contain the calls of the
      hooks.
    - `channels_last` allows the channels-last layout for images inside the graphs.
    - `buckets` has the bytes of the buckets in which gradients are sent; backward then runs in stages.

    A graph that writes to inputs assumes that the inputs do not overlap in memory. Each call checks the assumption. If
    an input shares memory with a written input, the torch-level graph runs, operation by operation.

    A graph is compiled in segments if it has a `cond` or a call that autograd must see. The callable for any other
    graph has an attribute `signature` (GraphSignature). A graph that differentiates gradients runs operation by
    operation: a compiled graph would run once, and again under autograd for the second derivative. Raises BackendError
    MD401, MD402, MD404, MD406 or MD414 for a program that this stage cannot handle, before any code of the program
    runs.
    """
    if any(map(differentiates_again, gm.graph.nodes)):
        return make_boxed(gm)
    checkpoint = next((node for node in gm.graph.nodes if node.target in CHECKPOINTS), None)
    if hooks is not None and checkpoint is not None:
        raise GraphRefused(_HOOKS_OF_CHECKPOINTS.at(line_of_node(checkpoint)))
    if has_cuts(gm):
        compile_segment = functools.partial(
            aot_compile,
            forward=forward,
            backward=backward,
            inference=inference,
            keep=keep,
            cache=cache,
            save_policy=save_policy,
            hooks=hooks,
            channels_last=channels_last,
            buckets=buckets,
        )
        return compile_segments(gm, example_inputs, compile_segment)
    noticed: set[tuple[str, str]] = set()
    forward, backward, inference = (_boxing(compiler, noticed) for compiler in (forward, backward, inference))
    stored = None if cache is None else cache.entry_for(gm, example_inputs)
    compiled = None if stored is None else stored.read(lambda graph: backward(graph, _examples(graph)))
    if compiled is None:
        graphs = aot_graphs(gm, example_inputs, keep=keep, save_policy=save_policy, hooks=hooks, buckets=buckets)
        graphs = (_with_channels_last(graphs) if channels_last else None) or graphs
        compiled = _compile_graphs(graphs, forward=forward, backward=backward, inference=inference, stored=stored)
    return _callable(gm, example_inputs, keep, compiled, hooks)


def _with_channels_last(graphs: AotGraphs) -> AotGraphs | None:
    """Returns `graphs` with images in the channels-last layout; None where the layout does not pay off, or where
    positions in the graphs are recorded already, or the user's hooks or views of saved tensors depend on the layout."""
    parts = graphs.partition
    if parts is None:
        converted = lay_out_channels_last(graphs.forward)
    elif parts.views or graphs.signature.graph.gradients or graphs.signature.unpacked:
        return None
    else:
        results = parts.results
        saved_positions = {position: results + i for position, (kind, i) in enumerate(parts.sources) if kind == "extra"}
        converted = lay_out_channels_last(graphs.forward, results, graphs.backward, saved_positions)
    return None if converted is None else replace(graphs, forward=converted[0], backward=converted[1])


def _boxing(compiler: AtenCompiler, noticed: set[tuple[str, str]]) -> AtenCompiler:
    def compile_boxed(graph: fx.GraphModule, examples: Sequence[Any]) -> BoxedCallable:
        return as_boxed(compiler(graph, examples), "a compiler of forward or backward graphs", noticed)

    return compile_boxed


def _compile_graphs(
    graphs: AotGraphs,
    *,
    forward: AtenCompiler,
    backward: AtenCompiler,
    inference: AtenCompiler,
    stored: CacheEntry | None,
) -> CompiledCall:
    """Compiles the graphs, backward at the first backward, and writes the results to `stored`."""
    backward_graph = graphs.backward
    compile_first = inference if backward_graph is None else forward
    with compat.without_autocast():
        compiled = compile_first(graphs.forward, _examples(graphs.forward))
    if graphs.partition is None or backward_graph is None:
        plan = CallPlan(graphs.layout, graphs.signature, graphs.without_grad)
        if stored is not None:
            stored.write(plan, {"inference": compiled})
        return CompiledCall(plan, compiled)
    saved, expected = tuple(graphs.partition.sources), tuple(_examples(backward_graph))
    plan = CallPlan(graphs.layout, graphs.signature, saved=saved, expected=expected, higher=graphs.higher)

    stages = {"forward": compiled}
    if stored is not None:
        stored.write(plan, stages, backward_graph)

    def compile_backward(part: BackwardPart) -> BoxedCallable:
        graph = part_of(backward_graph, len(saved), part, graphs.signature.graph)
        stages[part.stage] = backward(graph, _examples(graph))
        if stored is not None:
            stored.write(plan, stages, backward_graph)
        return stages[part.stage]

    return CompiledCall(plan, compiled, compile_backward, lambda: backward_graph)


def _callable(
    gm: fx.GraphModule, example_inputs: Sequence[Any], keep: Keep, compiled: CompiledCall, hooks: Hooks | None
) -> BoxedCallable:
    """Returns the boxed callable that runs compiled graphs by their plan, for the current modes."""
    plan = compiled.plan
    run_eagerly = functools.cache(lambda: unflatten_inputs(plan.layout, make_boxed(gm)))
    if plan.signature.saved:
        saved = SavedTensors(plan.signature.saved)
        artifacts.write("saved", "forward", f"{saved}\n", ".txt", saved)
    if plan.signature.graph.stages:
        names = plan.signature.graph.names_in_stages(plan.signature.inputs)
        artifacts.write("stages", "backward", "".join(f"{' '.join(stage)}\n" for stage in names), ".txt", names)
    if compiled.compile_backward is None:
        call = graph_call.inference_call(plan.signature, compiled.forward, plan.without_grad)
    else:
        flat = plan.layout.flatten(example_inputs)
        derivatives = Derivatives(
            gm,
            plan.layout,
            flat,
            lambda: decomposition_table(keep()),
            plan.higher.saved,
            plan.signature.graph.inputs,
            readers_of_tensors(plan.signature),
            _refusal(plan.signature),
        )
        unpack = None if hooks is None else unpacking(plan.signature, hooks.unpack)
        double_backward = DoubleBackward(plan.higher, derivatives, plan.signature.graph.inputs)
        backward = BackwardGraphs(compiled.compile_backward, compiled.backward_graph)
        call = graph_call.training_call(
            plan.signature, compiled.forward, plan.saved, backward, plan.expected, double_backward, unpack
        )
        if plan.signature.unpacked:
            call = without_hooks(call)
        if not torch.is_grad_enabled():
            call = _with_grad(call)
    if any(map(torch.is_autocast_enabled, compat.AUTOCAST_DEVICES)):
        call = _without_autocast(call)
    if plan.signature.mutations:
        examples = plan.layout.flatten(example_inputs)
        call = graph_call.checking_inputs(plan.signature, examples, call, run_eagerly)
    boxed = flatten_inputs(plan.layout, call)
    boxed.signature = plan.signature  # type: ignore[attr-defined]
    return boxed


def _refusal(signature: GraphSignature) -> str:
    """Returns the reason why gradients cannot be differentiated; "" if there is none.

    Eager would differentiate the results of the hooks for the saved tensors. A graph that is traced without the hooks
    does not contain these results.
    """
    saved_as_in_eager = signature.unpacked and config.saved_tensors_hooks_filtering_mode != "donated"
    return "Hooks for saved tensors are a part of the graph." if saved_as_in_eager else ""


def _with_grad(call: BoxedCallable) -> BoxedCallable:
    """Wraps the call of a graph that is entered with the grad mode off and switches it on itself: autograd must see the
    call."""

    def run(args: list[Any]) -> Any:
        with torch.enable_grad():
            return call(args)

    return mark_boxed(run)


def _without_autocast(call: BoxedCallable) -> BoxedCallable:
    """Wraps the call of a graph that is entered with autocast on: the graph contains the conversions already."""

    def run(args: list[Any]) -> Any:
        with compat.without_autocast():
            return call(args)

    return mark_boxed(run)


def aot_graphs(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    keep: Keep = frozenset,
    save_policy: SavePolicy | None = None,
    hooks: Hooks | None = None,
    buckets: Sequence[int] | None = None,
) -> AotGraphs:
    """Returns the graphs that `aot_compile` passes to its compilers, with their signature. Compiles nothing."""
    initial_settings = settings()
    with phase("autograd"):
        layout = layout_of(gm, example_inputs)
        flat = layout.flatten(example_inputs)
        trace = trace_joint(gm, layout, flat, decomposition_table(keep()))
        with compat.without_autocast():  # the traced graph contains the conversions
            functional = functionalize(trace, layout.flat_names(), flat)
            if trace.training:
                draw_from_states(functional)
            results = plan_outputs(trace, functional)
            mark_inputs(functional.placeholders, flat)
            sizes = storage_sizes(functional, [output.node for output in trace.outputs], trace.mutated_with_grad)
            if trace.training:
                tracer = None if hooks is None else HookTracer(hooks, decomposition_table(keep()), initial_settings)
                graphs = _training_graphs(layout, trace, functional, results, sizes, save_policy, tracer)
                graph = in_stages(graphs.signature.graph, flat, trace.is_leaf, buckets)
                graphs = replace(graphs, signature=replace(graphs.signature, graph=graph))
            else:
                graphs = _inference_graphs(layout, trace, functional, results, sizes)
    strides = result_strides(gm.graph, results)
    signature = replace(graphs.signature, all_gradients=is_reentrant(gm), result_strides=strides)
    return replace(graphs, signature=signature)


def _inference_graphs(
    layout: InputLayout, trace: Trace, functional: FunctionalGraph, results: Results, sizes: StorageSizes
) -> AotGraphs:
    graph = forward_graph(_forward(functional, results, sizes))
    without_grad = torch.is_grad_enabled() and any(trace.requires_grad.values())
    signature = inference_signature(layout, functional, results)
    return AotGraphs(layout, signature, _module(graph), None, None, without_grad)


def _training_graphs(
    layout: InputLayout,
    trace: Trace,
    functional: FunctionalGraph,
    results: Results,
    sizes: StorageSizes,
    save_policy: SavePolicy | None,
    hooks: HookTracer | None,
) -> AotGraphs:
    """Splits the joint graph at the tensors that forward saves, and records in the signature how to call the graphs."""
    nodes = trace.gradients.values()
    gradients = [None if node is None else functional.read(functional.values[node]) for node in nodes]
    mark_result_gradients(trace, functional)
    eager_saved = frozenset[fx.Node]() if hooks is None else saved_in_eager(functional)
    joint = _joint(trace, functional, results, gradients, eager_saved, sizes)
    written = [mutation.index for mutation in results.mutations]

    parts = partition(joint, save_policy)
    higher = plan_higher_order(trace, functional, parts, gradients, written, layout.donated_inputs())
    unpacked: tuple[Unpacked, ...] = ()
    if hooks is not None:
        parts, unpacked = pack(parts, results.results_in_inputs, hooks)
    forward, backward = _module(parts.forward), _module(parts.backward)
    signature = replace(inference_signature(layout, functional, results, parts), unpacked=unpacked)
    per_target = not higher.off_path_saves
    graph = node_graph(trace, functional, results, gradients, parts, backward, saves_per_target=per_target)
    if graph.readers:
        higher = held_per_result(higher, trace, functional, parts, graph.readers)
        held = {functional.placeholders[i]: targets for i, targets in higher.held.items()}
        graph = replace(graph, keeps_all=keeps_all(graph, parts, held))
    signature = with_node_graph(signature, graph)
    return AotGraphs(layout, signature, forward, backward, parts, higher=higher)


def _forward(functional: FunctionalGraph, results: Results, sizes: StorageSizes) -> Forward:
    written = {functional.placeholders[mutation.index] for mutation in results.mutations}
    return Forward(
        graph=functional.emitter.graph,
        inputs=[*functional.placeholders, *functional.constants],
        results=results.nodes,
        writes=results.input_writes,
        overwritten=frozenset(written - sizes.emptied),
        sizes=sizes,
    )


def _joint(
    trace: Trace,
    functional: FunctionalGraph,
    results: Results,
    gradients: list[fx.Node | None],
    saved_by_eager: frozenset[fx.Node],
    sizes: StorageSizes,
) -> Joint:
    forward, read_by_derivatives = _forward(functional, results, sizes), extra_reads(trace, functional)
    held = [*forward.inputs, *forward.results, *final_values(forward.writes)]
    return Joint(
        forward=forward,
        tangents=functional.tangents,
        gradients=gradients,
        writable_by_caller=writable_by_caller(forward.graph, functional.forward_nodes, held, read_by_derivatives),
        read_by_derivatives=read_by_derivatives,
        results_in_inputs=results.results_in_inputs,
        saved_by_eager=saved_by_eager,
    )


def _module(graph: fx.Graph) -> fx.GraphModule:
    return compat.graph_module(torch.nn.Module(), graph)


def _examples(gm: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
