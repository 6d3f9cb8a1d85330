"""Owns the hooks on results of a compiled graph: runs the same hooks as eager, with the same gradients.

Autograd has one node for the whole graph, and result nodes for some results. If only some gradients are requested,
autograd would run the hooks on all results as soon as the graph's node runs. In eager each result has a separate node,
which runs only if a requested tensor is reached through it. The value of a requested gradient differs as well: if the
node runs, the incoming gradient is returned, else the gradient after the hooks. So some hooks are skipped here, and a
gradient that cannot be returned is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.accumulation import unwanted_gradients
from minidynamo.core.references import Reference
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph.tensor_hooks import UnlessNone, hook_table, notice_hooks, requested_edges

Notice = Callable[[Any, int | None, Mapping[int, Any]], None]

_RESULT_NODE_TYPES: set[type] = set()
"""The type of the nodes between results and the graph's node."""


def result_node(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Registers the node type of `function`, for nodes with one output whose first edge leads to the graph's node."""
    _RESULT_NODE_TYPES.add(compat.node_type(function))
    return function


def graph_node(node: Any, number: int | None = None) -> tuple[Any, int | None]:
    """Returns the graph's node, and the number of a result there, given a node and the number of its output."""
    return node.next_functions[0] if type(node) in _RESULT_NODE_TYPES else (node, number)


def kept_by(node: Any) -> Any:
    """Returns the values that a call keeps for higher derivatives, given the graph's node: its own, and those of the
    results that are alive. None after a backward has freed them."""
    state, references = getattr(node, "double_backward", None), getattr(node, "owned", None)
    if state is None or not references:
        return state
    owners = [owned for reference in references.values() if (owned := reference()) and (owned.inputs or owned.ends)]
    if not owners:
        return state
    held, links = {**state.held}, [*state.links]
    for owned in owners:
        held.update(owned.inputs)
        for index, (link, _) in owned.ends.items():
            links[index] = link
    return replace(state, held=held, links=links)


def watch_hooks(function: type[torch.autograd.Function], notice: Notice) -> type[torch.autograd.Function]:
    """Makes nodes of `function` call `notice` when a hook on a result is registered, and run the hooks as in eager."""
    notice_hooks(function, notice, _ResultHook)
    return function


class _ResultHook(UnlessNone):
    """A hook on output `number` of a node."""

    def __init__(self, hook: Any, node: Any, number: int) -> None:
        super().__init__(hook)
        self.node = Reference(node)
        self.number = number

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        node = self.node()
        if gradient is None or compat.runs_for_all_leaves() or node is None:
            return super().__call__(gradient)
        requested = requested_edges()
        if requested is None or self.runs_in_eager(node, requested):
            return self.hook(gradient)
        edge = self.edge(node)
        if edge is None or edge not in requested:
            return None
        replaced = self.hook(gradient)
        runs = any(
            following is not None and compat.will_run(following) is not False for following, _ in edge[0].next_functions
        )
        if replaced is not None and runs:
            raise _changed_by_hook_error()
        return replaced

    def edge(self, node: Any) -> tuple[Any, int] | None:
        """Returns the edge of the hook's gradient: a node and the number of an output. None if unknown."""
        return node, self.number

    def runs_in_eager(self, node: Any, requested: list[tuple[Any, int]]) -> bool:
        """Returns whether a requested tensor is reached through the result; True if unknown."""
        main, number = graph_node(node, self.number)
        state = kept_by(main)
        if state is None:  # the saved values were freed, so backward raises
            return True
        signature: GraphSignature = main.signature
        graph = signature.graph
        index = graph.positions.index(number)
        if graph.nodes[index].inputs and _depends_on_requested(
            index, signature, [graph_node(*edge) for edge in requested], main
        ):
            return True
        links, unwanted = state.links, unwanted_gradients(main, state.links)
        return any(
            link is not None and index in edge.reached_from and i not in unwanted
            for i, (link, edge) in enumerate(zip(links, graph.edges))
        )


class _ViewHook(_ResultHook):
    """A hook on a `view` of the result; the view's node is a node of torch."""

    def __init__(self, hook: Any, node: Any, number: int, view: Any) -> None:
        super().__init__(hook, node, number)
        self.view = Reference(view)
        self.name, self.next_functions = view.grad_fn.name(), view.grad_fn.next_functions

    def runs_in_eager(self, node: Any, requested: list[tuple[Any, int]]) -> bool:
        """Returns whether a requested tensor is reached through the view; True if unknown. Such a tensor may also be
        the result itself, a view between, or in the history of an argument that the graph writes."""
        alive = self.view() is not None
        if not alive and any(other is not None and other.name() == self.name for other, _ in requested):
            return True  # perhaps the view's own node, whose Python object is not kept
        pending, seen = [*self.next_functions], set()
        while pending:
            following, number = pending.pop()
            if following is None or (following, number) in seen:
                continue
            seen.add((following, number))
            runs = following is not node and compat.will_run(following) is not False
            if (following, number) in requested or (runs and compat.leaf_of(following) is not None):
                return True
            if runs:
                pending += following.next_functions
        return super().runs_in_eager(node, requested)

    def edge(self, node: Any) -> tuple[Any, int] | None:
        """Returns the view's edge while the view is alive."""
        view = self.view()
        return None if view is None else (view.grad_fn, view.output_nr)


def watch_view(view: torch.Tensor, result: torch.Tensor) -> None:
    """Makes hooks on a view of a result run as in eager; the view is made after the graph has run."""
    node, number, reference = result.grad_fn, result.output_nr, Reference(view)
    if node is not None and view.grad_fn not in (None, node):
        hook_table(view, lambda hook: _ViewHook(hook, node, number, reference()))


def _depends_on_requested(
    index: int, signature: GraphSignature, requested: list[tuple[Any, int | None]], main: Any
) -> bool:
    """Returns whether result `index` is computed from a requested result, or from a view or an argument, which no edge
    identifies."""
    written = {mutation.result for mutation in signature.mutations}
    nodes = signature.graph.nodes
    positions = {nodes[source].position for source in signature.graph.all_inputs(index)}
    if None in positions or not written.isdisjoint(positions):
        return True
    return any(node is main and number in positions for node, number in requested)


def _changed_by_hook_error() -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            "a gradient that a hook replaced cannot be returned",
            why="`torch.autograd.grad` is asked for the gradient of a result of a compiled graph, on which the hook is"
            " registered, and for another gradient through the same graph. The graph is one autograd node, which"
            " returns the gradient that came in.",
            fix="Request the gradient of the result in a separate call, with `retain_graph=True` in the first call, or"
            " call `minidynamo.graph_break()` in the function after the result.",
        )
    )
