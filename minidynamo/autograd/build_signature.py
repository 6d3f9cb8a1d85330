"""Owns the building of a `GraphSignature`: each function returns the signature with the fields of one subject.

The fields are described in `graph/signature.py`; `aot.py` calls the functions in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import marked_ancestors
from minidynamo.autograd.functional.outputs import Results
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.layout.dim_order import aliased_tangents
from minidynamo.autograd.partition.partition import Partition
from minidynamo.autograd.runtime.partial_backward import KeptFor, results_reading
from minidynamo.autograd.trace.joint import Trace
from minidynamo.autograd.trace.leaf_order import edge_order
from minidynamo.graph.marks import RESULT_GRADIENT


def inference_signature(
    layout: InputLayout,
    functional: FunctionalGraph,
    results: Results,
    parts: Partition | None = None,
) -> GraphSignature:
    """Returns the fields that need no gradients; with `parts`, also the saved tensors."""
    return GraphSignature(
        inputs=layout.flat_names(),
        outputs=tuple(results.outputs),
        views=tuple(results.views),
        mutations=tuple(results.mutations),
        results=len(results.nodes),
        differentiable_results=tuple(results.differentiable),
        result_writes=tuple(results.writes.items()),
        internal_views=(
            *results.internal_views,
            *(len(results.nodes) + i for i in ([] if parts is None else parts.views)),
        ),
        constants=tuple(functional.constants.values()),
        saved=() if parts is None else tuple(parts.values),
        donated_inputs=layout.donated_inputs(),
        number_results=tuple(i for i, node in enumerate(results.nodes) if is_number(node)),
    )


def with_gradients(
    signature: GraphSignature,
    trace: Trace,
    functional: FunctionalGraph,
    gradients: Sequence[fx.Node | None],
    parts: Partition,
    backward: fx.GraphModule,
) -> GraphSignature:
    """Returns `signature` with the gradients of inputs and of results."""
    zeros = trace.zero_sources
    signature = replace(
        signature,
        gradients=tuple(trace.gradients),
        gradient_sources=_sources(trace, functional, gradients),
        zero_sources=tuple((place, zeros[i]) for place, i in enumerate(trace.gradients) if i in zeros),
        unreached=tuple(i for i, node in trace.gradients.items() if node is None),
        runs_once=trace.frees_saved,
    )
    signature = _with_result_gradients(_with_edge_order(signature, trace), trace, backward)
    tangents = backward.graph.find_nodes(op="placeholder")[len(parts.saved) :]
    return replace(signature, aliased_tangents=aliased_tangents(backward.graph, tangents))


def with_separate_results(
    signature: GraphSignature, trace: Trace, parts: Partition, *, saves_apart: bool
) -> GraphSignature:
    """Returns `signature` with what each of several results frees. `saves_apart`: a result may own saved tensors."""
    if saves_apart:
        signature = _with_saved_per_result(signature, parts, results_reading(parts.backward, len(parts.saved)))
    if any(len(gone) < len(trace.freed_with) for gone in trace.freed_with):
        everyone = tuple(range(len(signature.differentiable_results)))
        kept_for = tuple(places or everyone for places in signature.kept_for or ((),) * len(signature.saved))
        signature = replace(signature, kept_for=kept_for, freed_with=trace.freed_with)
    return signature


def _sources(
    trace: Trace, functional: FunctionalGraph, gradients: Sequence[fx.Node | None]
) -> tuple[tuple[int, ...], ...]:
    """Returns `GraphSignature.gradient_sources`."""
    tangents, behind = range(len(functional.tangents)), marked_ancestors(functional.emitter.graph, functional.tangents)
    read = (0 if node is None else behind.get(node, 0) for node in gradients)
    sources = (
        {*(position for position in tangents if mask >> position & 1), *trace.zero_sources.get(i, ())}
        for i, mask in zip(trace.gradients, read)
    )
    return tuple(tuple(sorted(mask)) for mask in sources)


def mark_result_gradients(trace: Trace, functional: FunctionalGraph) -> None:
    """Marks the nodes of the joint graph that are gradients of results."""
    for position, traced in trace.result_gradients.items():
        if position >= len(trace.tangents):
            continue  # a view: backward does not take its gradient
        node = None if traced is None else functional.read(functional.values[traced])
        if node is not None and node.op != "placeholder":
            node.meta[RESULT_GRADIENT] = position


def _with_result_gradients(signature: GraphSignature, trace: Trace, backward: fx.GraphModule) -> GraphSignature:
    """Returns `signature` with the fields on gradients of results: `saved_results`, `direct_inputs`, `result_gradients`
    and `result_zero_sources`."""
    if any(node is not None for node in trace.gradients.values()):
        signature = replace(signature, saved_results=trace.saved_results)
    own = dict(enumerate(trace.tangents))
    reached = {
        position
        for position, node in trace.result_gradients.items()
        if node is not None and node is not own.get(position)
    }
    reached |= trace.result_zero_sources.keys()
    if not reached:
        return signature
    marked = ((node.meta.get(RESULT_GRADIENT), i) for i, node in enumerate(backward.graph.nodes))
    result_gradients = {position: i for position, i in marked if position is not None}
    direct_inputs = tuple(
        tuple(position for position in positions if position in reached) for positions in trace.direct_inputs
    )
    result_zero_sources = tuple(trace.result_zero_sources.items())
    return replace(
        signature,
        direct_inputs=direct_inputs,
        result_gradients=tuple(sorted(result_gradients.items())),
        result_zero_sources=result_zero_sources,
    )


def _with_saved_per_result(signature: GraphSignature, parts: Partition, read: KeptFor) -> GraphSignature:
    """Returns `signature` with the saved tensors that serve only some of the results, if any."""
    kept_for = tuple(read[: sum(not is_number(node) for node in parts.saved)])
    if not any(kept_for):
        return signature
    saved = [
        replace(value, reason=f"{value.reason}; dies with {len(places)} of the results") if places else value
        for value, places in zip(signature.saved, read)
    ]
    return replace(signature, saved=tuple(saved), kept_for=kept_for)


def _with_edge_order(signature: GraphSignature, trace: Trace) -> GraphSignature:
    """Returns `signature` with `edge_order`, `unvisited` and `reaching_results`.

    `reaching_results` is left out where there are several devices: autograd runs each device in a thread of its own.
    """
    unvisited = tuple(position for position, i in enumerate(trace.gradients) if not trace.reaching_results.get(i, True))
    signature = replace(signature, edge_order=_edge_order(trace), unvisited=unvisited)
    lead_everywhere = all(len(positions) == len(trace.tangents) for positions in trace.reaching_results.values())
    values = [*trace.tangents, *(trace.primals[i] for i in trace.gradients)]
    if lead_everywhere or len({node.meta["val"].device for node in values}) > 1:
        return signature
    return replace(signature, reaching_results=tuple(trace.reaching_results[i] for i in trace.gradients))


def _edge_order(trace: Trace) -> tuple[int, ...]:
    """Returns `GraphSignature.edge_order`."""
    positions = {i: position for position, i in enumerate(trace.gradients)}
    ordered = [i for i in dict.fromkeys((*trace.leaf_order, *positions)) if i in positions]
    leaves = [positions[i] for i in ordered if trace.is_leaf[i]]
    order = edge_order(leaves, [positions[i] for i in ordered if not trace.is_leaf[i]])
    return () if order == (*range(len(positions)),) else order
