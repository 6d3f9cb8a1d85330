"""Owns the building of a `GraphSignature`, and of its record of the autograd graph.

The fields are described in `graph/signature.py`; `aot.py` calls the functions in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import fx

from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import marked_ancestors
from minidynamo.autograd.functional.outputs import Results
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.signature import GraphSignature, NodeGraph
from minidynamo.autograd.layout.dim_order import aliased_tangents
from minidynamo.autograd.partition.partition import Partition
from minidynamo.autograd.runtime.partial_backward import results_reading
from minidynamo.autograd.trace.joint import Trace
from minidynamo.graph.marks import RESULT_GRADIENT
from minidynamo.memory.plan import SMALL_SAVED


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


def node_graph(
    trace: Trace,
    functional: FunctionalGraph,
    results: Results,
    gradients: Sequence[fx.Node | None],
    parts: Partition,
    backward: fx.GraphModule,
    *,
    saves_per_target: bool,
) -> NodeGraph:
    """Returns the autograd graph of the traced program, completed with the facts of the compiled graphs.

    `saves_per_target`: a saved tensor may belong to some targets only.
    """
    graph = trace.node_graph
    tangents = backward.graph.find_nodes(op="placeholder")[len(parts.saved) :]
    aliased = aliased_tangents(backward.graph, tangents)
    marks = ((node.meta.get(RESULT_GRADIENT), i) for i, node in enumerate(backward.graph.nodes))
    gradient_nodes = {number: i for number, i in marks if number is not None}
    tangent_of = dict(enumerate(trace.tangents))
    # The nodes that get a gradient from other targets, in addition to their own tangent.
    reached = {k for k, node in trace.result_gradients.items() if node is not None and node is not tangent_of.get(k)}
    reached |= {number for number, node in enumerate(graph.nodes) if node.zero_sources}
    positions = dict(enumerate(results.differentiable))
    nodes = tuple(
        replace(
            node,
            position=positions.get(number),
            inputs=tuple(i for i in node.inputs if i in reached),
            gradient=gradient_nodes.get(number),
            is_saved=node.is_saved and any(edge.has_gradient for edge in graph.edges),
            is_aliased=number in aliased,
        )
        for number, node in enumerate(graph.nodes)
    )
    sources = _sources(functional, gradients)
    edges = tuple(
        replace(edge, sources=tuple(sorted({*found, *edge.zero_sources}))) for edge, found in zip(graph.edges, sources)
    )
    graph = NodeGraph(nodes, edges)
    if len(positions) < 2:
        return graph
    return replace(graph, readers=_readers(graph, parts, saves_per_target=saves_per_target))


def _sources(functional: FunctionalGraph, gradients: Sequence[fx.Node | None]) -> list[list[int]]:
    """Returns, per gradient, the targets whose tangents the gradient is computed from."""
    masks = marked_ancestors(functional.emitter.graph, functional.tangents)
    gradient_masks = (0 if node is None else masks.get(node, 0) for node in gradients)
    return [[target for target in range(len(functional.tangents)) if mask >> target & 1] for mask in gradient_masks]


def _readers(graph: NodeGraph, parts: Partition, *, saves_per_target: bool) -> tuple[tuple[int, ...], ...]:
    """Returns `NodeGraph.readers`. If backward can free some targets only, no saved tensor belongs to all."""
    saved = sum(not is_number(node) for node in parts.saved)
    readers = results_reading(parts.backward, len(parts.saved))[:saved] if saves_per_target else [()] * saved
    if graph.frees_in_parts:
        return tuple(targets or tuple(range(len(graph.targets))) for targets in readers)
    return tuple(readers) if any(readers) else ()


def keeps_all(graph: NodeGraph, parts: Partition, held: Mapping[fx.Node, Sequence[int]]) -> bool:
    """Returns `NodeGraph.keeps_all`. `held` has the targets that need each input kept for higher derivatives."""
    saved = zip((node for node in parts.saved if not is_number(node)), graph.readers)
    saved_in_parts = (node for node, targets in (*saved, *held.items()) if len(targets) in range(1, len(graph.targets)))
    values = [node.meta["val"] for node in saved_in_parts]
    size = sum(value.numel() * value.itemsize for value in values)
    return not graph.frees_in_parts and isinstance(size, int) and size <= SMALL_SAVED


def with_node_graph(signature: GraphSignature, graph: NodeGraph) -> GraphSignature:
    """Returns the signature of a training graph."""
    saved = tuple(
        replace(value, reason=f"{value.reason}; dies with {len(targets)} of the results")
        if len(targets) in range(1, len(graph.targets)) and not graph.keeps_all
        else value
        for value, targets in zip(signature.saved, graph.readers or ((),) * len(signature.saved))
    )
    return replace(signature, saved=saved, graph=graph)


def mark_result_gradients(trace: Trace, functional: FunctionalGraph) -> None:
    """Marks the nodes of the joint graph that are gradients of results."""
    for number, traced in trace.result_gradients.items():
        if number >= len(trace.tangents):
            continue  # a view: backward does not take its gradient
        node = None if traced is None else functional.read(functional.values[traced])
        if node is not None and node.op != "placeholder":
            node.meta[RESULT_GRADIENT] = number
