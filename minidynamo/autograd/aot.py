"""Owns the way from a torch-level graph to one boxed callable that runs compiled forward, backward or inference graphs.

The stages stand in `aot_compile` in order. The compilers are the caller's: this room makes graphs and calls them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.eager_peak.traced_memory import TracedMemory, traced_memory
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.functionalize import functionalize
from minidynamo.autograd.functional.joint_graph import Forward, Joint, places_behind
from minidynamo.autograd.functional.outputs import Results, plan_outputs, result_strides
from minidynamo.autograd.functional.storage_resize import StorageSizes, storage_sizes
from minidynamo.autograd.functional.written_inputs import holds_in_the_end
from minidynamo.autograd.graph.inputs import InputLayout, flatten_inputs, layout_of, unflatten_inputs
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.signature import GraphSignature, Unpacked
from minidynamo.autograd.layout.channels_last import lay_out_images
from minidynamo.autograd.layout.dim_order import handed_on
from minidynamo.autograd.partition.hook_graphs import HookTracer
from minidynamo.autograd.partition.packing import kept_as_in_eager, kept_for_tensors, mark_inputs, pack, unpacking
from minidynamo.autograd.partition.partition import Partition, exposed, forward_graph, partition
from minidynamo.autograd.partition.rng_replay import draw_from_states
from minidynamo.autograd.partition.saving import SavePolicy
from minidynamo.autograd.runtime import graph_call
from minidynamo.autograd.runtime.call_plan import CallPlan, CompiledCall
from minidynamo.autograd.runtime.derivatives import Derivatives
from minidynamo.autograd.runtime.double_backward import (
    DoubleBackward,
    HigherOrder,
    held_for,
    plan_higher_order,
    read_again,
)
from minidynamo.autograd.runtime.partial_backward import KeptFor, Part, part_of, read_for
from minidynamo.autograd.segments import compile_segments, has_cuts
from minidynamo.autograd.splitting import Split, best_split
from minidynamo.autograd.trace.decompositions import decomposition_table
from minidynamo.autograd.trace.joint import Trace, trace_joint
from minidynamo.autograd.trace.leaf_order import edges
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import phase
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph.autograd_calls import differentiates_again
from minidynamo.graph.boxed import BoxedCallable, as_boxed, make_boxed, mark_boxed
from minidynamo.graph.checkpoint import CHECKPOINTS, is_reentrant
from minidynamo.graph.saved_tensor_hooks import Hooks, without_hooks
from minidynamo.graph.torch_settings import AUTOCAST_DEVICES, settings
from minidynamo.memory.saved import SavedTensors

AtenCompiler = Callable[[fx.GraphModule, Sequence[Any]], BoxedCallable]
Keep = Callable[[], Collection[OpOverload]]
Announce = Callable[[fx.GraphModule, Sequence[Any], "AotGraphs"], None]


@dataclass(frozen=True)
class AotGraphs:
    """What the autograd stage made of one torch-level graph. `partition` is None for an inference graph, and so is
    `eager`, what the graph is thought to take in eager, which nobody asks where `config.eager_peak` is off."""

    layout: InputLayout
    signature: GraphSignature
    forward: fx.GraphModule
    backward: fx.GraphModule | None
    partition: Partition | None
    without_grad: bool = False
    higher: HigherOrder = field(default_factory=HigherOrder)
    eager: TracedMemory | None = None


class Place(Protocol):
    """Where what one graph is compiled to is kept, if it was, or can be."""

    def read(self, compile_backward: Callable[[fx.GraphModule], BoxedCallable]) -> CompiledCall | None:
        """What was kept, ready to be called; None when there is nothing. A backward graph that was kept as a graph is
        compiled with `compile_backward` when it is called. Raises GraphRefused for a graph that was refused."""
        ...

    def refuse(self, why: Diagnostic) -> None:
        """Keep that the graph is not compiled."""
        ...

    def write(
        self, plan: CallPlan, stages: Mapping[str, BoxedCallable], backward: fx.GraphModule | None = None
    ) -> None:
        """Keep what was made: "inference", or "forward", the graph of backward, and by their names (`Part.stage`) what
        parts of it were compiled to."""
        ...


class GraphCache(Protocol):
    """What knows, from earlier processes, what graphs are compiled to."""

    def place(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Place | None:
        """The place of a graph under the modes that are in force; None for one that cannot be kept."""
        ...


_HOOKS_OF_CHECKPOINTS = Diagnostic(
    "MD414",
    "it has a checkpoint, and hooks for saved tensors that would be put into it",
    why="A checkpoint has hooks of its own, which take the place of yours inside of it.",
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
    announce: Announce | None = None,
    hooks: Hooks | None = None,
    images: bool = False,
) -> BoxedCallable:
    """Compile a torch-level graph; the result takes one list with a value per placeholder.

    `example_inputs` are fake tensors, or lists of them for list placeholders. `forward` and `backward` compile the
    graphs for training, `inference` the graph when nothing requires grad; each gets a functional ATen graph and fake
    inputs. `backward` is called at the first backward; what it raises reaches the user there, so a caller that wants
    eager execution instead must return an eager callable itself. What they return is boxed; a plain callable is
    adapted, with one notice. `keep` gives operators that are not to be decomposed. `cache` may know what an equal graph
    was compiled to. What a graph becomes is told to `announce` before its forward or inference graph is compiled.
    `hooks` for saved tensors, with which it will be called, become a part of it. `images` may be laid out with their
    channels last inside the graphs.

    A graph that writes to inputs assumes that they lie in separate memory. Each call checks that; inputs that share
    memory with a written one are run by the torch-level graph, operation by operation.

    A graph with `cond`, or with what autograd must see itself, is compiled in segments. The result of another has an
    attribute `signature` (GraphSignature). What differentiates gradients runs operation by operation: compiled, its
    graph would run once, and once more under autograd for the second derivative. Raises BackendError MD401, MD402,
    MD404, MD406 or MD414 for a program that this stage cannot handle; then nothing has been run or changed.
    """
    if any(map(differentiates_again, gm.graph.nodes)):
        return make_boxed(gm)
    if hooks is not None and any(node.target in CHECKPOINTS for node in gm.graph.nodes):
        raise GraphRefused(_HOOKS_OF_CHECKPOINTS)
    if has_cuts(gm):
        again = functools.partial(
            aot_compile,
            forward=forward,
            backward=backward,
            inference=inference,
            keep=keep,
            cache=cache,
            save_policy=save_policy,
            announce=announce,
            hooks=hooks,
            images=images,
        )
        return compile_segments(gm, example_inputs, again)
    noticed: set[tuple[str, str]] = set()
    forward, backward, inference = (_boxing(compiler, noticed) for compiler in (forward, backward, inference))
    place = None if cache is None else cache.place(gm, example_inputs)
    found = None if place is None else place.read(lambda graph: backward(graph, _examples(graph)))
    if found is None:

        def compile_as(graphs: AotGraphs) -> CompiledCall:
            if announce is not None:
                announce(gm, example_inputs, graphs)
            return _compile_graphs(graphs, forward=forward, backward=backward, inference=inference, place=place)

        graphs = aot_graphs(gm, example_inputs, keep=keep, save_policy=save_policy, hooks=hooks)
        laid_out = _with_images(graphs) if images else None
        try:
            if laid_out is not None:
                # Refused because it needs more memory than eager, it may be for the copies of images.
                with contextlib.suppress(GraphRefused), artifacts.kept_if_done():
                    found = compile_as(laid_out)
            if found is None:
                found = compile_as(graphs)
        except GraphRefused as refused:
            if place is not None:
                place.refuse(refused.diagnostic)
            raise
    return _callable(gm, example_inputs, keep, found, hooks)


def _with_images(graphs: AotGraphs) -> AotGraphs | None:
    """`graphs` with images laid out with their channels last; None where that would not pay, or where places in the
    graphs, or what hooks and views make of values that are kept, have been noted."""
    parts = graphs.partition
    if parts is None:
        moved = lay_out_images(graphs.forward)
    elif parts.views or graphs.signature.arrivals or graphs.signature.unpacked:
        return None
    else:
        extras = ((place, i) for place, (kind, i) in enumerate(parts.sources) if kind == "extra")
        kept = {place: parts.results + i for place, i in extras}
        moved = lay_out_images(graphs.forward, parts.results, graphs.backward, kept)
    return None if moved is None else replace(graphs, forward=moved[0], backward=moved[1])


def _boxing(compiler: AtenCompiler, noticed: set[tuple[str, str]]) -> AtenCompiler:
    def compile_boxed(graph: fx.GraphModule, examples: Sequence[Any]) -> BoxedCallable:
        return as_boxed(compiler(graph, examples), "a compiler of forward or backward graphs", noticed)

    return compile_boxed


def _compile_graphs(
    graphs: AotGraphs, *, forward: AtenCompiler, backward: AtenCompiler, inference: AtenCompiler, place: Place | None
) -> CompiledCall:
    """Compile the graphs, backward at the first backward. What was made goes to `place`."""
    late = graphs.backward
    with compat.without_autocast():
        compiled = (inference if late is None else forward)(graphs.forward, _examples(graphs.forward))
    if graphs.partition is None or late is None:
        plan = CallPlan(graphs.layout, graphs.signature, graphs.without_grad)
        if place is not None:
            place.write(plan, {"inference": compiled})
        return CompiledCall(plan, compiled)
    saved, expected = tuple(graphs.partition.sources), tuple(_examples(late))
    plan = CallPlan(graphs.layout, graphs.signature, saved=saved, expected=expected, higher=graphs.higher)

    stages = {"forward": compiled}
    if place is not None:
        place.write(plan, stages, late)

    def compile_backward(part: Part) -> BoxedCallable:
        graph = part_of(late, len(saved), part, graphs.signature.kept_for, graphs.signature.arrivals)
        stages[part.stage] = backward(graph, _examples(graph))
        if place is not None:
            place.write(plan, stages, late)
        return stages[part.stage]

    return CompiledCall(plan, compiled, compile_backward)


def _callable(
    gm: fx.GraphModule, example_inputs: Sequence[Any], keep: Keep, made: CompiledCall, hooks: Hooks | None
) -> BoxedCallable:
    """The boxed callable that runs compiled graphs as their plan says, for the modes that are in force now."""
    plan = made.plan
    as_written = functools.cache(lambda: unflatten_inputs(plan.layout, make_boxed(gm)))
    if plan.signature.saved:
        saved = SavedTensors(plan.signature.saved)
        artifacts.write("saved", "forward", f"{saved}\n", ".txt", saved)
    if made.compile_backward is None:
        call = graph_call.inference_call(plan.signature, made.forward, plan.without_grad)
    else:
        flat = plan.layout.flatten(example_inputs)
        derivatives = Derivatives(
            gm,
            plan.layout,
            flat,
            lambda: decomposition_table(keep()),
            plan.higher.saved,
            kept_for_tensors(plan.signature),
            _refusal(plan.signature),
        )
        unpack = None if hooks is None else unpacking(plan.signature, hooks.unpack)
        again = DoubleBackward(plan.higher, derivatives, plan.signature.gradients)
        call = graph_call.training_call(
            plan.signature, made.forward, plan.saved, made.compile_backward, plan.expected, again, unpack
        )
        if plan.signature.unpacked:
            call = without_hooks(call)
        if not torch.is_grad_enabled():
            call = _with_grad(call)
    if any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES)):
        call = _without_autocast(call)
    if plan.signature.mutations:
        examples = plan.layout.flatten(example_inputs)
        call = graph_call.checking_inputs(plan.signature, examples, call, as_written)
    entry = flatten_inputs(plan.layout, call)
    entry.signature = plan.signature  # type: ignore[attr-defined]
    return entry


def _refusal(signature: GraphSignature) -> str:
    """Why gradients cannot be differentiated: eager would differentiate what hooks give for what it has kept, of which
    a graph that is traced without them knows nothing."""
    as_eager = signature.unpacked and config.saved_tensors_hooks_filtering_mode != "donated"
    return "Hooks for saved tensors are a part of the graph." if as_eager else ""


def _with_grad(call: BoxedCallable) -> BoxedCallable:
    """For a graph that is entered with the grad mode off and switches it on itself: autograd must see the call."""

    def run(args: list[Any]) -> Any:
        with torch.enable_grad():
            return call(args)

    return mark_boxed(run)


def _without_autocast(call: BoxedCallable) -> BoxedCallable:
    """For a graph that is entered with autocast on: it holds the conversions already."""

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
) -> AotGraphs:
    """The graphs that `aot_compile` hands to its compilers, and how to call them. Compiles nothing."""
    entry = settings()
    with phase("autograd"):
        layout = layout_of(gm, example_inputs)
        flat = layout.flatten(example_inputs)
        trace = trace_joint(gm, layout, flat, decomposition_table(keep()))
        eager = traced_memory(trace) if trace.training and config.eager_peak else None
        with compat.without_autocast():  # what it converts is in the traced graph
            functional = functionalize(trace, layout.flat_names(), flat)
            if trace.training:
                draw_from_states(functional)
            results = plan_outputs(trace, functional)
            mark_inputs(functional.placeholders, flat)
            tracer = None if hooks is None else HookTracer(hooks, decomposition_table(keep()), entry)
            graphs = _split(layout, trace, functional, results, save_policy, tracer)
    strides = result_strides(gm.graph, results)
    signature = replace(graphs.signature, all_gradients=is_reentrant(gm), result_strides=strides)
    return replace(graphs, signature=signature, eager=eager)


def _split(
    layout: InputLayout,
    trace: Trace,
    functional: FunctionalGraph,
    results: Results,
    save_policy: SavePolicy | None,
    hooks: HookTracer | None,
) -> AotGraphs:
    sizes = storage_sizes(functional, [output.node for output in trace.outputs], trace.mutated_with_grad)
    if not trace.training:
        made = forward_graph(_forward(functional, results, sizes))
        without_grad = torch.is_grad_enabled() and any(trace.requires_grad.values())
        return AotGraphs(layout, _signature(layout, functional, results), _module(made), None, None, without_grad)
    gradients = [
        None if node is None else functional.read(functional.values[node]) for node in trace.gradients.values()
    ]
    _mark_arrivals(trace, functional)
    kept = frozenset[fx.Node]() if hooks is None else kept_as_in_eager(functional)
    joint = _joint(trace, functional, results, gradients, kept, sizes)
    written = [mutation.index for mutation in results.mutations]

    def split(joint: Joint) -> Split:
        parts = partition(joint, save_policy)
        return parts, plan_higher_order(trace, functional, parts, gradients, written, layout.given_up())

    usual = hooks is None and save_policy is None and config.activation_budget >= 1
    differentiable = [results.nodes[position] for position in results.differentiable]
    parts, higher = best_split(joint, trace, functional, differentiable, split) if usual else split(joint)
    unpacked: tuple[Unpacked, ...] = ()
    if hooks is not None:
        parts, unpacked = pack(parts, results.lying, hooks)
    zeros = trace.zeros_from
    signature = replace(
        _signature(layout, functional, results, parts),
        gradients=tuple(trace.gradients),
        gradient_sources=_sources(trace, functional, gradients),
        zeros_from=tuple((place, zeros[i]) for place, i in enumerate(trace.gradients) if i in zeros),
        unreached=tuple(i for i, node in trace.gradients.items() if node is None),
        runs_once=trace.saves,
        unpacked=unpacked,
    )
    forward, backward = _module(parts.forward), _module(parts.backward)
    signature = _with_arrivals(_with_edges(signature, trace), trace, backward)
    inputs_of_backward = backward.graph.find_nodes(op="placeholder")
    signature = replace(signature, handed_on=handed_on(backward.graph, inputs_of_backward[len(parts.saved) :]))
    if len(results.differentiable) > 1:
        if not higher.strays:
            signature = _kept_apart(signature, parts, read_for(parts.backward, len(parts.saved)))
        if any(len(gone) < len(trace.used_up) for gone in trace.used_up):
            everyone = tuple(range(len(results.differentiable)))
            kept_for = tuple(places or everyone for places in signature.kept_for or ((),) * len(signature.saved))
            signature = replace(signature, kept_for=kept_for, used_up=trace.used_up)
        if signature.kept_for:
            higher = replace(higher, held_for=held_for(higher, trace, functional, parts, signature.kept_for))
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
    kept: frozenset[fx.Node],
    sizes: StorageSizes,
) -> Joint:
    forward, again = _forward(functional, results, sizes), read_again(trace, functional)
    held = [*forward.inputs, *forward.results, *holds_in_the_end(forward.writes)]
    return Joint(
        forward=forward,
        tangents=functional.tangents,
        gradients=gradients,
        exposed=exposed(forward.graph, functional.made_forward, held, again),
        also=again,
        lying=results.lying,
        eager=kept,
    )


def _sources(
    trace: Trace, functional: FunctionalGraph, gradients: Sequence[fx.Node | None]
) -> tuple[tuple[int, ...], ...]:
    """For `GraphSignature.gradient_sources`."""
    tangents, behind = range(len(functional.tangents)), places_behind(functional.emitter.graph, functional.tangents)
    read = (0 if node is None else behind.get(node, 0) for node in gradients)
    found = (
        {*(place for place in tangents if places >> place & 1), *trace.zeros_from.get(i, ())}
        for i, places in zip(trace.gradients, read)
    )
    return tuple(tuple(sorted(places)) for places in found)


_ARRIVES = "arrives"
"""Marks the node whose value is the gradient that arrives at a result, by its place; see `GraphSignature.arrivals`."""


def _mark_arrivals(trace: Trace, functional: FunctionalGraph) -> None:
    for place, traced in trace.arrivals.items():
        if place >= len(trace.tangents):
            continue  # of a view, whose gradient backward does not take
        node = None if traced is None else functional.read(functional.values[traced])
        if node is not None and node.op != "placeholder":
            node.meta[_ARRIVES] = place


def _with_arrivals(signature: GraphSignature, trace: Trace, backward: fx.GraphModule) -> GraphSignature:
    """`signature` with what results are computed from, where a gradient arrives, and where backward computes which."""
    if any(node is not None for node in trace.gradients.values()):
        signature = replace(signature, saved_results=trace.saved_results)
    own = dict(enumerate(trace.tangents))
    reached = {place for place, node in trace.arrivals.items() if node is not None and node is not own.get(place)}
    reached |= trace.zeros_at.keys()
    if not reached:
        return signature
    marked = ((node.meta.get(_ARRIVES), i) for i, node in enumerate(backward.graph.nodes))
    arrivals = {place: i for place, i in marked if place is not None}
    on_the_way = tuple(tuple(place for place in places if place in reached) for places in trace.on_the_way)
    zeros_at = tuple(trace.zeros_at.items())
    return replace(signature, on_the_way=on_the_way, arrivals=tuple(sorted(arrivals.items())), zeros_at=zeros_at)


def _kept_apart(signature: GraphSignature, parts: Partition, read: KeptFor) -> GraphSignature:
    """`signature` with what is kept for some results alone, if anything is."""
    kept_for = tuple(read[: sum(not is_number(node) for node in parts.saved)])
    if not any(kept_for):
        return signature
    saved = [
        replace(value, reason=f"{value.reason}; dies with {len(places)} of the results") if places else value
        for value, places in zip(signature.saved, read)
    ]
    return replace(signature, saved=tuple(saved), kept_for=kept_for)


def _with_edges(signature: GraphSignature, trace: Trace) -> GraphSignature:
    """`signature` with `edges`, `unvisited` and `ways`; without the latter where there are several devices, of which
    autograd runs each in a thread of its own."""
    unvisited = tuple(place for place, i in enumerate(trace.gradients) if not trace.ways.get(i, True))
    signature = replace(signature, edges=_edges(trace), unvisited=unvisited)
    lead_everywhere = all(len(places) == len(trace.tangents) for places in trace.ways.values())
    values = [*trace.tangents, *(trace.primals[i] for i in trace.gradients)]
    if lead_everywhere or len({node.meta["val"].device for node in values}) > 1:
        return signature
    return replace(signature, ways=tuple(trace.ways[i] for i in trace.gradients))


def _edges(trace: Trace) -> tuple[int, ...]:
    """For `GraphSignature.edges`."""
    places = {i: place for place, i in enumerate(trace.gradients)}
    ordered = [i for i in dict.fromkeys((*trace.arrived, *places)) if i in places]
    leaves = [places[i] for i in ordered if trace.is_leaf[i]]
    found = edges(leaves, [places[i] for i in ordered if not trace.is_leaf[i]])
    return () if found == (*range(len(places)),) else found


def _signature(
    layout: InputLayout,
    functional: FunctionalGraph,
    results: Results,
    parts: Partition | None = None,
) -> GraphSignature:
    return GraphSignature(
        inputs=layout.flat_names(),
        outputs=tuple(results.outputs),
        views=tuple(results.views),
        mutations=tuple(results.mutations),
        results=len(results.nodes),
        differentiable_results=tuple(results.differentiable),
        result_writes=tuple(results.writes.items()),
        no_views=(*results.no_views, *(len(results.nodes) + i for i in ([] if parts is None else parts.views))),
        constants=tuple(functional.constants.values()),
        saved=() if parts is None else tuple(parts.values),
        given_up=layout.given_up(),
        number_results=tuple(i for i, node in enumerate(results.nodes) if is_number(node)),
    )


def _module(graph: fx.Graph) -> fx.GraphModule:
    return compat.graph_module(torch.nn.Module(), graph)


def _examples(gm: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
