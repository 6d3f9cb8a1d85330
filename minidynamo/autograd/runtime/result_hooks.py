"""Owns how hooks of a compiled graph's results run: those that eager runs, on what eager has for them.

Autograd has one node for the whole graph, and maybe nodes of some results in front of it. Asked for some gradients, it
runs the hooks on all results if the graph's node runs; in eager a result has a node of its own, which runs where
something behind that is asked for. A gradient that is asked for itself is what came in where the node runs, and what
hooks made of that where it does not. So hooks are left out here, and what cannot be handed out is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.accumulation import not_asked_for
from minidynamo.core.references import Reference
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph.tensor_hooks import UnlessNone, asked_edges, hooks_to_come, notice_hooks

Notice = Callable[[Any, int | None, Mapping[int, Any]], None]

_IN_FRONT: set[type] = set()
"""The types of nodes that results have in front of the node of their graph."""


def in_front(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """`function`, whose nodes stand between results and the node of their graph, which their first edges lead to."""
    _IN_FRONT.add(compat.node_type(function))
    return function


def main_node(node: Any, number: int | None = None) -> tuple[Any, int | None]:
    """The node of the whole graph, and the number of a result there, given those of a node of results."""
    while type(node) in _IN_FRONT:
        node, after = node.next_functions[number or 0]
        number = None if number is None else after
    return node, number


def watch_hooks(function: type[torch.autograd.Function], notice: Notice) -> type[torch.autograd.Function]:
    """`function`, whose nodes call `notice` when hooks of their results are registered, and run them as eager does."""
    notice_hooks(function, notice, _HookOfResult)
    return function


class _HookOfResult(UnlessNone):
    """A hook on the result with a `number` of a node."""

    def __init__(self, hook: Any, node: Any, number: int) -> None:
        super().__init__(hook)
        self.node = Reference(node)
        self.number = number

    def __call__(self, given: torch.Tensor | None) -> Any:
        node = self.node()
        if given is None or compat.asks_for_all_gradients() or node is None:
            return super().__call__(given)
        asked = asked_edges()
        if asked is None or self.runs_in_eager(node, asked):
            return self.hook(given)
        edge = self.edge(node)
        if edge is None or edge not in asked:
            return None
        found = self.hook(given)
        runs = any(after is not None and compat.will_run(after) is not False for after, _ in edge[0].next_functions)
        if found is not None and runs:
            raise _not_handed_out()
        return found

    def edge(self, node: Any) -> tuple[Any, int] | None:
        """Where the gradient comes in that the hook is for: a node of autograd's graph, and the number there; None if
        that is not known."""
        return node, self.number

    def runs_in_eager(self, node: Any, asked: list[tuple[Any, int]]) -> bool:
        """Whether something that is `asked` for lies behind the result; True where that is not known."""
        main, number = main_node(node, self.number)
        kept = getattr(main, "again", None)
        if kept is None:  # what was saved is gone, so its backward raises
            return True
        signature: GraphSignature = main.signature
        place = signature.differentiable_results.index(number)
        if signature.on_the_way and _leads_to(place, signature, [main_node(*edge) for edge in asked], main):
            return True
        links = kept.links if main.apart is None else main.apart.completed(kept.links)
        unwanted = not_asked_for(main, links)
        ways = signature.ways or ((place,),) * len(links)
        return any(
            link is not None and place in results and i not in unwanted
            for i, (link, results) in enumerate(zip(links, ways))
        )


class _HookOfView(_HookOfResult):
    """A hook on a `view` of the result, whose node is torch's."""

    def __init__(self, hook: Any, node: Any, number: int, view: Any) -> None:
        super().__init__(hook, node, number)
        self.view = Reference(view)
        self.name, self.behind = view.grad_fn.name(), view.grad_fn.next_functions

    def runs_in_eager(self, node: Any, asked: list[tuple[Any, int]]) -> bool:
        """The same, where something else may lie behind the view: the result itself, or a view between, or what an
        argument was computed from that the graph has written to."""
        alive = self.view() is not None
        if not alive and any(one is not None and one.name() == self.name for one, _ in asked):
            return True  # the view's own node, maybe, which has no lasting name in Python
        pending, seen = [*self.behind], set()
        while pending:
            after, number = pending.pop()
            if after is None or (after, number) in seen:
                continue
            seen.add((after, number))
            runs = after is not node and compat.will_run(after) is not False
            if (after, number) in asked or (runs and compat.leaf_of(after) is not None):
                return True
            if runs:
                pending += after.next_functions
        return super().runs_in_eager(node, asked)

    def edge(self, node: Any) -> tuple[Any, int] | None:
        """The view's, as long as it lives."""
        view = self.view()
        return None if view is None else (view.grad_fn, view.output_nr)


def watch_view(view: torch.Tensor, result: torch.Tensor) -> None:
    """Have hooks on a view that is made of a result behind the graph run where eager runs them."""
    node, number, reference = result.grad_fn, result.output_nr, Reference(view)
    if node is not None and view.grad_fn not in (None, node):
        hooks_to_come(view, lambda hook: _HookOfView(hook, node, number, reference()))


def _leads_to(place: int, signature: GraphSignature, asked: list[tuple[Any, int | None]], main: Any) -> bool:
    """Whether the result at a place is computed from one that is asked for, or from one that is not found by its edge,
    since it is a view or the user's argument."""
    behind = all_behind(place, signature.on_the_way)
    written = {mutation.result for mutation in signature.mutations}
    results = signature.differentiable_results
    if any(source >= len(results) or results[source] in written for source in behind):
        return True
    return any(node is main and number in {results[source] for source in behind} for node, number in asked)


def all_behind(place: int, on_the_way: tuple[tuple[int, ...], ...]) -> set[int]:
    """The places that the result at a place is computed from, with others between or not."""
    found: set[int] = set()
    pending = [place]
    while pending:
        place = pending.pop()
        new = {*on_the_way[place]} - found if place < len(on_the_way) else set()
        found |= new
        pending += new
    return found


def _not_handed_out() -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            "what a hook made of a gradient cannot be handed out",
            why="`torch.autograd.grad` is asked for a result of a compiled graph that has the hook, and for something"
            " else behind that graph. The graph is one node of autograd's, which hands out what comes in there.",
            fix="Ask for the result in a call of its own, with `retain_graph=True` in the first, or call"
            " `minidynamo.graph_break()` in the function behind the result.",
        )
    )
