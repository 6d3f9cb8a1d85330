"""Owns what the gradient functions behind results of a traced program tell of them: which use up others, are computed
from others, or give an input zeros.

In eager an input gets None where no function calls its own, and zeros where a derivative is zero (`torch.sgn`, `x**0`).
In the joint graph such zeros hang on no gradient that comes in, so from which result they come is asked of autograd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_slot

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import places_behind

HANDED_OVER = "handed_over"
"""Where a gradient function notes edges that eager has instead of ones to what it was computed from."""


def functions_behind(targets: Iterable[torch.Tensor]) -> list[torch.autograd.graph.Node]:
    """The gradient functions that autograd calls for `targets`."""
    found: dict[torch.autograd.graph.Node, None] = {}
    pending = [target.grad_fn for target in targets]
    while pending:
        function = pending.pop()
        if function is not None and function not in found:
            found[function] = None
            pending += [after for after, _ in function.next_functions]
    return list(found)


def used_results(function: torch.autograd.graph.Node, targets: list[torch.Tensor]) -> set[int]:
    """The numbers of the results, of those that `function` gives gradients for, that `targets` hang on."""
    edges = [(target.grad_fn, target.output_nr) for target in targets]
    edges += (edge for behind in functions_behind(targets) for edge in behind.next_functions)
    return {number for after, number in edges if after == function}


def used_up(targets: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """For each target those that share a function with it of which backward frees something."""
    saving = {f for f in functions_behind(targets) if compat.runs_once(f) or _saved_by(f)}
    behind = [saving.intersection(functions_behind([target])) for target in targets]
    return tuple(tuple(k for k, others in enumerate(behind) if not own.isdisjoint(others)) for own in behind)


def on_the_way(targets: Sequence[torch.Tensor], watchable: Mapping[int, torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """For each target those of `watchable` that it is computed from with no other target between."""
    if len(watchable) < 2:
        return ()
    functions = functions_behind([*watchable.values()])  # which live until all edges are compared
    places: dict[Any, int] = {}
    for place, value in watchable.items():
        places.setdefault((value.grad_fn, value.output_nr), place)
    found = [_first_met(target.grad_fn, places, len(targets)) for target in targets]
    del functions
    return tuple(tuple(sorted(met - {i})) for i, met in enumerate(found)) if any(found) else ()


def view_behind(view: torch.Tensor, others: Mapping[int, torch.Tensor], base: torch.Tensor) -> int | None:
    """The first of `others` that gradients of a view come through on their way to its base, by its number."""
    places: dict[Any, int] = {}
    for place, other in others.items():
        if other.grad_fn is not None:
            places.setdefault(_edge(other), place)
    function = view.grad_fn
    while function is not None and function is not base.grad_fn and len(function.next_functions) == 1:
        edge = function.next_functions[0]
        if edge in places:
            return places[edge]
        function = edge[0]
    return None


def saved_results(targets: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The positions of those that the functions which made them have saved for their own gradients."""
    return tuple(i for i, target in enumerate(targets) if _edge(target) in map(_edge, _saved_by(target.grad_fn)))


def _saved_by(function: torch.autograd.graph.Node | None) -> list[torch.Tensor]:
    if function is None:
        return []
    of_the_user: Any = getattr(function, "saved_tensors", ())
    return [*compat.saved_by(function), *(value for value in of_the_user if value is not None)]


def _edge(value: torch.Tensor) -> tuple[torch.autograd.graph.Node | None, int]:
    return value.grad_fn, value.output_nr


def reached(values: Sequence[torch.Tensor | None], watchable: Mapping[int, torch.Tensor]) -> tuple[frozenset[int], ...]:
    """For each of `values` those of `watchable` that its gradients arrive at."""
    places: dict[Any, int] = {}
    for place, value in watchable.items():
        if value.grad_fn is not None:
            places.setdefault(_edge(value), place)

    def behind(value: torch.Tensor | None) -> frozenset[int]:
        if value is None or not places:
            return frozenset()
        functions: list[Any] = functions_behind([value])
        edges = {_edge(value), *(edge for function in functions for edge in function.next_functions)}
        edges.update(edge for function in functions for edge in function.metadata.get(HANDED_OVER, ()))
        return frozenset(place for edge, place in places.items() if edge in edges)

    return tuple(map(behind, values))


def _first_met(function: torch.autograd.graph.Node | None, places: Mapping[Any, int], targets: int) -> set[int]:
    """The `places` by edges that are met on all ways behind a gradient function, which end at `targets`, the first
    ones."""
    met: set[int] = set()
    seen: set[torch.autograd.graph.Node | None] = {None}
    pending = [function]
    while pending:
        function = pending.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        for edge in function.next_functions:
            place = places.get(edge)
            if place is not None:
                met.add(place)
            if place is None or place >= targets:
                pending.append(edge[0])
    return met


def ways(targets: Sequence[torch.Tensor], sources: Mapping[int, torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """For each of `sources`, which are leaves, the positions of the `targets` that autograd comes there from."""
    found: dict[int, list[int]] = {i: [] for i in sources}
    for place, target in enumerate(targets):
        leaves = {id(target), *(id(compat.leaf_of(function)) for function in functions_behind([target]))}
        for i, source in sources.items():
            if id(source) in leaves:
                found[i].append(place)
    return {i: tuple(places) for i, places in found.items()}


def zeros_from(
    targets: Sequence[torch.Tensor],
    sources: Mapping[int, torch.Tensor],
    gradients: Iterable[torch.Tensor | None],
    tracer: Any,
) -> dict[int, tuple[int, ...]]:
    """For each of `sources` the positions of the `targets` that give it a gradient which was not computed from theirs.

    `gradients` were traced, and what the functions have saved is still there.
    """
    if len(targets) < 2:
        return {}
    made = {i: _node(value, tracer) for i, value in zip(sources, gradients) if value is not None}
    tangents = [node for node in tracer.graph.nodes if node.op == "placeholder"][-len(targets) :]
    behind = places_behind(tracer.graph, tangents)
    found: dict[int, list[int]] = {}
    for place, target in enumerate(targets):
        unread = [i for i, node in made.items() if not behind.get(node, 0) >> place & 1]
        functions = functions_behind([target]) if unread else []
        leaves = {id(compat.leaf_of(function)) for function in functions}
        asked = [i for i in unread if id(sources[i]) in leaves or sources[i].grad_fn in functions]
        for i, gradient in zip(asked, _alone(target, [sources[i] for i in asked]) if asked else ()):
            if gradient is not None:
                found.setdefault(i, []).append(place)
    return {i: tuple(places) for i, places in found.items()}


def _node(value: torch.Tensor, tracer: Any) -> fx.Node:
    node: fx.Node = get_proxy_slot(value, tracer).proxy.node
    return node


def _alone(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> Iterable[torch.Tensor | None]:
    """The gradients of `sources` by one target, which are not traced."""
    with disable_proxy_modes_tracing():
        given = torch.empty_like(target.detach())
        return torch.autograd.grad(target, sources, given, retain_graph=True, allow_unused=True)
