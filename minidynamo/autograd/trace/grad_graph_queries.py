"""Owns the questions about autograd's graph of a traced program: shared saved tensors of results, dependencies between
results, the sources of zero gradients, and the order of leaves.

In eager an input gets None if no gradient function reaches the input, and zeros if a derivative is zero (`torch.sgn`,
`x**0`). In the joint graph the zeros depend on no tangent, so autograd's graph must tell from which result the zeros
come.

In eager each leaf gets its gradient as soon as the gradient exists. A compiled graph is a single autograd node, so all
leaves are ready at once. Autograd takes ready leaves from a heap (`std::priority_queue`) in which all leaves compare
equal. Therefore the order of the node's edges determines the order of the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_slot

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import marked_ancestors
from minidynamo.autograd.graph.hooks import register
from minidynamo.autograd.graph.signature import Node

EXTRA_EDGES = "handed_over"
"""Metadata key of a gradient function: edges that eager has in place of the traced edges."""


def reachable_functions(targets: Iterable[torch.Tensor]) -> list[torch.autograd.graph.Node]:
    """Returns the gradient functions that autograd calls for `targets`."""
    functions: dict[torch.autograd.graph.Node, None] = {}
    pending = [target.grad_fn for target in targets]
    while pending:
        function = pending.pop()
        if function is not None and function not in functions:
            functions[function] = None
            pending += [following for following, _ in function.next_functions]
    return list(functions)


def used_results(function: torch.autograd.graph.Node, targets: list[torch.Tensor]) -> set[int]:
    """Returns the numbers of the results of `function`'s operation that `targets` depend on."""
    edges = [(target.grad_fn, target.output_nr) for target in targets]
    edges += (edge for reached in reachable_functions(targets) for edge in reached.next_functions)
    return {number for following, number in edges if following == function}


def eager_nodes(
    targets: Sequence[torch.Tensor], views: Iterable[int], watchable: Sequence[torch.Tensor], is_freed: bool
) -> tuple[Node, ...]:
    """Returns the nodes of the targets, and of the outputs with the numbers `views`.

    `watchable` are the tensors of the nodes, or nothing if no gradient reaches an input. `is_freed`: backward frees
    saved tensors.
    """
    frees = _freed_with(targets) if len(targets) > 1 else ((0,) if is_freed else (),)
    inputs = _direct_inputs(targets, watchable)
    saved = [_edge(target) in map(_edge, _saved_by(target.grad_fn)) for target in targets]
    nodes = (Node(inputs=i, frees=f, is_saved=s) for i, f, s in zip(inputs, frees, saved, strict=True))
    return (*nodes, *(Node(output=output) for output in views))


def _freed_with(targets: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """Returns, per target, the targets that share a gradient function with freeable saved tensors."""
    saving = {f for f in reachable_functions(targets) if compat.runs_once(f) or _saved_by(f)}
    by_target = [saving.intersection(reachable_functions([target])) for target in targets]
    return tuple(tuple(k for k, other in enumerate(by_target) if not own.isdisjoint(other)) for own in by_target)


def _direct_inputs(targets: Sequence[torch.Tensor], watchable: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Returns, per target, the positions in `watchable` of the values that the target is computed from directly: on
    the path is no other target."""
    if len(watchable) < 2:
        return [()] * len(targets)
    functions = reachable_functions(watchable)  # kept alive until all edges are compared
    positions: dict[Any, int] = {}
    for position, value in enumerate(watchable):
        positions.setdefault(_edge(value), position)
    nearest = [_nearest_positions(target.grad_fn, positions, len(targets)) for target in targets]
    del functions
    return [tuple(sorted(values - {i})) for i, values in enumerate(nearest)]


def nearest_view(view: torch.Tensor, others: Mapping[int, torch.Tensor], base: torch.Tensor) -> int | None:
    """Returns the key of the first tensor of `others` on the path of gradients from `view` to `base`."""
    positions: dict[Any, int] = {}
    for position, other in others.items():
        if other.grad_fn is not None:
            positions.setdefault(_edge(other), position)
    function = view.grad_fn
    while function is not None and function is not base.grad_fn and len(function.next_functions) == 1:
        edge = function.next_functions[0]
        if edge in positions:
            return positions[edge]
        function = edge[0]
    return None


def _saved_by(function: torch.autograd.graph.Node | None) -> list[torch.Tensor]:
    if function is None:
        return []
    by_user: Any = getattr(function, "saved_tensors", ())
    return [*compat.saved_by(function), *(value for value in by_user if value is not None)]


def _edge(value: torch.Tensor) -> tuple[torch.autograd.graph.Node | None, int]:
    return value.grad_fn, value.output_nr


def reached_results(
    values: Sequence[torch.Tensor | None], watchable: Sequence[torch.Tensor]
) -> tuple[frozenset[int], ...]:
    """Returns, per value, the positions in `watchable` that gradients of the value reach."""
    positions: dict[Any, int] = {}
    for position, value in enumerate(watchable):
        if value.grad_fn is not None:
            positions.setdefault(_edge(value), position)

    def reached(value: torch.Tensor | None) -> frozenset[int]:
        if value is None or not positions:
            return frozenset()
        functions: list[Any] = reachable_functions([value])
        edges = {_edge(value), *(edge for function in functions for edge in function.next_functions)}
        edges.update(edge for function in functions for edge in function.metadata.get(EXTRA_EDGES, ()))
        return frozenset(position for edge, position in positions.items() if edge in edges)

    return tuple(map(reached, values))


def _nearest_positions(
    function: torch.autograd.graph.Node | None, positions: Mapping[Any, int], targets: int
) -> set[int]:
    """Returns the positions of the edges on paths from a gradient function; each path ends at the first target.

    `positions` has the position of each edge; positions below `targets` are targets.
    """
    nearest: set[int] = set()
    seen: set[torch.autograd.graph.Node | None] = {None}
    pending = [function]
    while pending:
        function = pending.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        for edge in function.next_functions:
            position = positions.get(edge)
            if position is not None:
                nearest.add(position)
            if position is None or position >= targets:
                pending.append(edge[0])
    return nearest


def reaching_results(
    targets: Sequence[torch.Tensor], sources: Mapping[int, torch.Tensor], gradients: Mapping[int, torch.Tensor | None]
) -> dict[int, tuple[int, ...]]:
    """Returns, per source (a leaf), the targets from which autograd reaches the source.

    With several devices, no target or every target: autograd runs each device in a thread of its own.
    """
    everywhere = tuple(range(len(targets)))
    if len(targets) < 2 and all(gradient is not None for gradient in gradients.values()):
        return dict.fromkeys(sources, everywhere)
    found = leaves_reached(targets, sources)
    if len({value.device for value in (*targets, *sources.values())}) > 1:
        return {i: everywhere if reached else () for i, reached in found.items()}
    return found


def leaves_reached(targets: Sequence[torch.Tensor], sources: Mapping[int, torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """Returns, per source (a leaf), the positions of the targets from which autograd reaches the source."""
    reached: dict[int, list[int]] = {i: [] for i in sources}
    for position, target in enumerate(targets):
        leaves = {id(target), *(id(compat.leaf_of(function)) for function in reachable_functions([target]))}
        for i, source in sources.items():
            if id(source) in leaves:
                reached[i].append(position)
    return {i: tuple(positions) for i, positions in reached.items()}


def zero_sources(
    targets: Sequence[torch.Tensor],
    sources: Mapping[int, torch.Tensor],
    gradients: Iterable[torch.Tensor | None],
    tracer: Any,
) -> dict[int, tuple[int, ...]]:
    """Returns, per source, the positions of targets whose gradient of the source does not depend on the target's
    tangent.

    `gradients` are the traced gradients of `sources`; the saved tensors must still exist.
    """
    if len(targets) < 2:
        return {}
    gradient_nodes = {i: _node(value, tracer) for i, value in zip(sources, gradients) if value is not None}
    tangents = [node for node in tracer.graph.nodes if node.op == "placeholder"][-len(targets) :]
    masks = marked_ancestors(tracer.graph, tangents)
    zeros: dict[int, list[int]] = {}
    for position, target in enumerate(targets):
        unread = [i for i, node in gradient_nodes.items() if not masks.get(node, 0) >> position & 1]
        functions = reachable_functions([target]) if unread else []
        leaves = {id(compat.leaf_of(function)) for function in functions}
        candidates = [i for i in unread if id(sources[i]) in leaves or sources[i].grad_fn in functions]
        for i, gradient in zip(
            candidates, _gradients_of_target(target, [sources[i] for i in candidates]) if candidates else ()
        ):
            if gradient is not None:
                zeros.setdefault(i, []).append(position)
    return {i: tuple(positions) for i, positions in zeros.items()}


def _node(value: torch.Tensor, tracer: Any) -> fx.Node:
    node: fx.Node = get_proxy_slot(value, tracer).proxy.node
    return node


def _gradients_of_target(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> Iterable[torch.Tensor | None]:
    """Returns the gradients of `sources` by one target, untraced."""
    with disable_proxy_modes_tracing():
        tangent = torch.empty_like(target.detach())
        return torch.autograd.grad(target, sources, tangent, retain_graph=True, allow_unused=True)


def recording_leaf_order(leaves: Mapping[int, torch.Tensor]) -> list[int]:
    """Returns a list to which each leaf's key is appended when a backward reaches the leaf."""
    arrived: list[int] = []

    def append(number: int) -> Callable[[torch.Tensor], None]:
        return lambda _: arrived.append(number)

    for number, leaf in leaves.items():
        register(leaf.register_hook, append(number))
    return arrived


def edge_order(arrived: Sequence[int], inputs: Iterable[int], is_leaf: Mapping[int, bool]) -> list[int]:
    """Returns an order of edges to `inputs` for which autograd takes the leaves in the order `arrived`, and the
    non-leaves last."""
    inputs = [*dict.fromkeys((*arrived, *inputs))]
    leaves, others = [i for i in inputs if is_leaf[i]], [i for i in inputs if not is_leaf[i]]
    ordered = [0] * len(leaves)
    for leaf, position in zip(leaves, taking_order(len(leaves), more=bool(others))):
        ordered[position] = leaf
    return [*ordered, *others]


def taking_order(count: int, *, more: bool) -> list[int]:
    """Returns the order in which a heap yields `count` equal elements, pushed in sequence.

    With `more`, a smaller element was pushed last.
    """
    heap = [*range(count + more)]
    taken = []
    while heap:
        taken.append(heap[0])
        last = heap.pop()
        hole, child = 0, 2
        while child <= len(heap):  # the right child moves up unless it is missing or smaller
            if child == len(heap) or heap[child] == count:
                child -= 1
            heap[hole] = heap[child]
            hole, child = child, 2 * child + 2
        if heap:
            heap[hole] = last
    return taken[:count]
