"""Owns the way from a torch-level graph to one boxed callable that runs compiled forward, backward or inference graphs.

The stages stand in `aot_compile` in order. The compilers are the caller's: this room makes graphs and calls them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd import runtime
from minidynamo.autograd.decompositions import decomposition_table
from minidynamo.autograd.functionalize import FunctionalGraph, functionalize
from minidynamo.autograd.inputs import InputLayout, flatten_inputs, layout_of, unflatten_inputs
from minidynamo.autograd.joint import Trace, trace_joint
from minidynamo.autograd.outputs import Results, plan_outputs
from minidynamo.autograd.partition import Partition, ancestors, forward_graph, partition
from minidynamo.autograd.segments import compile_segments, has_cond
from minidynamo.autograd.signature import GraphSignature
from minidynamo.boxed import BoxedCallable, make_boxed, mark_boxed
from minidynamo.compat import OpOverload
from minidynamo.events import phase
from minidynamo.switches import AUTOCAST_DEVICES

AtenCompiler = Callable[[fx.GraphModule, Sequence[Any]], BoxedCallable]


@dataclass(frozen=True)
class AotGraphs:
    """What the autograd stage made of one torch-level graph. `partition` is None for an inference graph."""

    layout: InputLayout
    signature: GraphSignature
    forward: fx.GraphModule
    backward: fx.GraphModule | None
    partition: Partition | None
    without_grad: bool = False


def aot_compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: AtenCompiler,
    backward: AtenCompiler,
    inference: AtenCompiler,
    keep: Collection[OpOverload] = (),
) -> BoxedCallable:
    """Compile a torch-level graph; the result takes one list with a value per placeholder.

    `example_inputs` are fake tensors, or lists of them for list placeholders. `forward` and `backward` compile the
    graphs for training, `inference` the graph when nothing requires grad; each gets a functional ATen graph and fake
    inputs. `backward` is called at the first backward; what it raises reaches the user there, so a caller that wants
    eager execution instead must return an eager callable itself. `keep` are operators that are not to be decomposed.

    A graph that writes to inputs assumes that they lie in separate memory. Each call checks that; inputs that share
    memory with a written one are run by the torch-level graph, operation by operation.

    A graph with `cond` in it is compiled in segments. The result of another one has an attribute `signature`
    (GraphSignature). Raises BackendError MD401, MD402, MD404 or MD406 for a program that this stage cannot handle; then
    nothing has been run or changed.
    """
    if has_cond(gm):
        again = functools.partial(aot_compile, forward=forward, backward=backward, inference=inference, keep=keep)
        return compile_segments(gm, example_inputs, again)
    graphs = aot_graphs(gm, example_inputs, keep=keep)
    if graphs.partition is None or graphs.backward is None:
        with compat.without_autocast():
            compiled = inference(graphs.forward, _examples(graphs.forward))
        call = runtime.inference_call(graphs.signature, compiled, graphs.without_grad)
    else:
        late = graphs.backward
        with compat.without_autocast():
            compiled = forward(graphs.forward, _examples(graphs.forward))
        call = runtime.training_call(
            graphs.signature,
            compiled,
            graphs.partition.sources,
            lambda: backward(late, _examples(late)),
            _examples(late),
        )
        if not torch.is_grad_enabled():
            call = _with_grad(call)
    if any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES)):
        call = _without_autocast(call)
    if graphs.signature.mutations:
        written = {mutation.index for mutation in graphs.signature.mutations}
        call = runtime.checking_memory(written, call, lambda: unflatten_inputs(graphs.layout, make_boxed(gm)))
    entry = flatten_inputs(graphs.layout, call)
    entry.signature = graphs.signature  # type: ignore[attr-defined]
    return entry


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


def aot_graphs(gm: fx.GraphModule, example_inputs: Sequence[Any], *, keep: Collection[OpOverload] = ()) -> AotGraphs:
    """The graphs that `aot_compile` hands to its compilers, and how to call them. Compiles nothing."""
    with phase("autograd"):
        layout = layout_of(gm, example_inputs)
        flat = layout.flatten(example_inputs)
        trace = trace_joint(gm, layout, flat, decomposition_table(keep))
        with compat.without_autocast():  # what it converts is in the traced graph
            functional = functionalize(trace, layout.flat_names(), flat)
            results = plan_outputs(trace, functional)
            return _split(layout, trace, functional, results)


def _split(layout: InputLayout, trace: Trace, functional: FunctionalGraph, results: Results) -> AotGraphs:
    graph = functional.emitter.graph
    inputs = [*functional.placeholders, *functional.constants]
    overwritten = {functional.placeholders[mutation.index] for mutation in results.mutations}
    if not trace.training:
        made = forward_graph(graph, inputs, results.nodes, results.copies, overwritten)
        without_grad = torch.is_grad_enabled() and any(trace.requires_grad.values())
        return AotGraphs(layout, _signature(layout, functional, results), _module(made), None, None, without_grad)
    gradients = [
        None if node is None else functional.read(functional.values[node]) for node in trace.gradients.values()
    ]
    parts = partition(graph, inputs, functional.tangents, results.nodes, results.copies, gradients, overwritten)
    sources = tuple(_tangents_of(node, functional.tangents) for node in gradients)
    signature = replace(
        _signature(layout, functional, results, parts),
        gradients=tuple(trace.gradients),
        gradient_sources=sources,
        unreached=tuple(i for i, node in trace.gradients.items() if node is None),
    )
    return AotGraphs(layout, signature, _module(parts.forward), _module(parts.backward), parts)


def _tangents_of(gradient: fx.Node | None, tangents: list[fx.Node]) -> tuple[int, ...]:
    used = ancestors([] if gradient is None else [gradient])
    return tuple(i for i, tangent in enumerate(tangents) if tangent in used)


def _signature(
    layout: InputLayout,
    functional: FunctionalGraph,
    results: Results,
    parts: Partition | None = None,
) -> GraphSignature:
    return GraphSignature(
        inputs=layout.flat_names(),
        outputs=tuple(results.outputs),
        mutations=tuple(results.mutations),
        results=len(results.nodes),
        differentiable_results=tuple(results.differentiable),
        constants=tuple(functional.constants.values()),
        saved=() if parts is None else tuple(parts.values),
        given_up=layout.given_up(),
    )


def _module(graph: fx.Graph) -> fx.GraphModule:
    return fx.GraphModule(torch.nn.Module(), graph)


def _examples(gm: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
