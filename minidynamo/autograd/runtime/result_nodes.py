"""Owns the autograd nodes of results computed from results of the same graph.

The graph is a single node of autograd's graph, so the gradient between two results never leaves the node. A dependent
result gets a result node before the graph's node, with edges to its *direct inputs*, the results that it is computed
from directly. Gradients usually pass through the result node unchanged. If a direct input is watched, by a hook for
example, the result node computes the gradient flowing to the direct input, and passes the gradient along the edge. The
graph's node then uses the incoming gradients of results instead of computing the flow between results.

`autograd/trace/joint.py` finds the direct inputs, and `partial_backward.py` makes the graphs.

An `index` below counts the differentiable results first (including the new data of mutated inputs), then the outputs
that are views.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.input_nodes import LeadingResult, without_data
from minidynamo.autograd.runtime.result_hooks import graph_node, result_node, watch_hooks
from minidynamo.autograd.runtime.saved_per_result import CompiledResult, received
from minidynamo.core.references import Reference
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.tensor_hooks import hook_table, may_request

FlowOf = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]

MOST_DECISIONS = 16
"""Most decisions remembered per graph: more than backward calls run at a time."""


class ResultNodes:
    """Makes the result nodes of one compiled graph.

    `flow_of(ctx, index, gradient)` returns the gradients flowing from result `index` to the results in
    `result_gradients`. Gradients flowing to any further result are not computed: backward raises if such a result is
    watched.
    """

    def __init__(self, signature: GraphSignature, flow_of: FlowOf) -> None:
        #: Computes the flow from one result to the direct inputs.
        self.flow_of = flow_of
        self.signature = signature
        #: Position of each differentiable result.
        self.differentiable = signature.graph.positions
        #: Indices of the results with a computable gradient, in the order of `flow_of`.
        self.result_gradients = [*signature.graph.gradients]
        #: Per index of a result: the indices of the direct inputs.
        self.direct_inputs = [node.inputs for node in signature.graph.targets]
        #: Pairs (result, direct input) where the result gives zeros without reading a gradient.
        nodes = signature.graph.nodes
        self.zeros = {(result, index) for index, node in enumerate(nodes) for result in node.zero_sources}
        #: Per mutation with history: index of the new data.
        self.written = [self.differentiable.index(m.result) for m in _history_mutations(signature)]
        #: Indices of direct inputs, and of results saved by eager; sorted.
        self.sources = sorted(
            {index for indices in self.direct_inputs for index in indices} | {*_saved_targets(signature)}
        )
        #: The views among `sources`.
        self.views = [index for index in self.sources if index >= len(self.differentiable)]
        #: All indices, each after the direct inputs and the base.
        self.order = _in_dependency_order({**dict(enumerate(self.direct_inputs)), **self._bases(signature)})
        not_computable = {*self.sources}.difference(self.result_gradients)
        #: Per index of a result: the direct and indirect inputs among `sources` without computable gradient.
        self.uncomputable_inputs = [
            not_computable & signature.graph.all_inputs(index) for index in range(len(self.direct_inputs))
        ]

    def _bases(self, signature: GraphSignature) -> dict[int, tuple[int, ...]]:
        """Returns, per index of a view, the index of its base, or () if the base has no index."""
        results = {("graph", result): index for index, result in enumerate(self.differentiable)}
        inputs = {("input", m.index): self.differentiable.index(m.result) for m in _history_mutations(signature)}
        plans = {index: signature.outputs[self.output(index)] for index in self.views}
        bases = {index: (results | inputs).get(signature.origin(plan)) for index, plan in plans.items()}
        return {index: () if base is None else (base,) for index, base in bases.items()}

    def output(self, index: int) -> int:
        """Returns the number of the output that a view is."""
        output = self.signature.graph.nodes[index].output
        assert output is not None
        return output

    def join(
        self,
        results: list[Any],
        inputs: Sequence[torch.Tensor],
        view: Callable[[int], torch.Tensor],
        write: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> dict[int, torch.Tensor]:
        """Replaces results in `results` by results with a node, and writes the new data to `inputs` by `write`, in
        dependency order. Returns, by number, the outputs that `view` had to make for this."""
        written = dict(zip(self.written, inputs, strict=True))
        node = results[self.differentiable[0]].grad_fn
        watch = None if node is None else _Watch(self.result_gradients, self.signature)
        if watch is not None:
            graph_node(node)[0].watch = watch
        found: dict[int, torch.Tensor] = {}
        for index in self.order:
            if index >= len(self.differentiable):
                found[index] = view(self.output(index))
                continue
            position = self.differentiable[index]
            if watch is not None and self.direct_inputs[index]:
                sources = [found[source] for source in self.direct_inputs[index]]
                results[position] = _depend(
                    self, index, watch, [results[position].detach()], results[position], *sources
                )
            if index in written:
                write(written[index], results[position])
            found[index] = written.get(index, results[position])
        if watch is not None:
            for index in self.sources:
                ours = index < len(self.differentiable) and index not in written
                watch.add(index, found[index], has_graph_node=ours)
        return {self.output(index): found[index] for index in self.views}


def has_result_nodes(signature: GraphSignature) -> bool:
    """Returns whether each call has to make result nodes, or has inputs both written and saved."""
    written = {mutation.result for mutation in signature.mutations}
    positions = signature.graph.positions
    saved = (positions[index] for index in _saved_targets(signature))
    return any(node.inputs for node in signature.graph.nodes) or not written.isdisjoint(saved)


def _saved_targets(signature: GraphSignature) -> list[int]:
    return [index for index, node in enumerate(signature.graph.nodes) if node.is_saved]


def recording_saved_results(run: BoxedCallable, signature: GraphSignature) -> BoxedCallable:
    """Wraps `run` so that the graph's node gets references to the results that eager saves, for `watch_for`."""
    positions = [signature.graph.positions[index] for index in _saved_targets(signature)]

    def recording(args: list[Any]) -> Any:
        results = run(args)
        node = results[positions[0]].grad_fn
        if node is not None:
            graph_node(node)[0].results = {i: Reference(results[i]) for i in positions}
        return results

    return recording


def watch_for(node: Any, signature: GraphSignature) -> _Watch | None:
    """Returns the watch of a call, given the graph's node; None if unnecessary."""
    watch: _Watch | None = getattr(node, "watch", None)
    references = getattr(node, "results", None)
    if watch is None and references is not None:
        watch = node.watch = _Watch((), signature)
        known = _recorded_hooks(node)
        for index, number in zip(_saved_targets(signature), references):
            watch.tensors[index], watch.hooks[index] = references[number], known[number]
    return watch


def _history_mutations(signature: GraphSignature) -> list[Any]:
    """Returns the mutations that change the history of an input."""
    return [mutation for mutation in signature.mutations if mutation.result is not None]


def _in_dependency_order(dependencies: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns all indices, each after the direct inputs and the base."""
    order: dict[int, None] = {}

    def visit(index: int) -> None:
        if index not in order:
            for source in dependencies[index]:
                visit(source)
            order[index] = None

    for index in dependencies:
        visit(index)
    return list(order)


class _Watch:
    """Finds the watched results of one call: a hook, `retain_grad()` or `torch.autograd.grad` can see the gradient."""

    def __init__(self, computable: Collection[int], signature: GraphSignature) -> None:
        #: Indices of results with a computable gradient.
        self.computable = computable
        self.signature = signature
        #: Watched results, by index.
        self.tensors: dict[int, Reference] = {}
        #: Dictionaries with the hooks of a watched result, by index.
        self.hooks: dict[int, list[Mapping[int, Any]]] = {}
        #: Decisions by number of the backward, at most MOST_DECISIONS.
        self.decided: dict[int, bool] = {}

    def add(self, index: int, tensor: torch.Tensor, *, has_graph_node: bool) -> None:
        """Starts to watch a result."""
        node: Any = tensor.grad_fn
        if node is None:
            return
        self.tensors[index] = Reference(tensor)
        hooks = self.hooks[index] = []
        if not has_graph_node:
            hooks.append(hook_table(tensor))
            return
        outputs = getattr(node, "watched", None)
        if outputs is None:
            outputs = node.watched = {}
        outputs[tensor.output_nr] = hooks

    def is_watched_now(self, gradient: torch.Tensor, not_computable: Collection[int]) -> bool:
        """Returns whether any result with a computable gradient is watched in the running backward; the answer is the
        same at each node.

        Raises if a watched gradient cannot be computed: the gradient of a result in `not_computable`, or a
        differentiated or batched gradient.
        """
        if any(map(self.is_watched, not_computable)):
            raise _not_shown_error()
        number = compat.current_backward()
        if number not in self.decided:
            self.decided[number] = any(map(self.is_watched, self.computable))
            if len(self.decided) > MOST_DECISIONS:
                del self.decided[min(self.decided)]
        if self.decided[number] and (torch.is_grad_enabled() or compat.is_batched(gradient)):
            raise _not_shown_error()
        return self.decided[number]

    def alive(self, indices: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """Returns (index, tensor) of the results still alive."""
        found = ((index, self.tensors[index]()) for index in indices if index in self.tensors)
        return [(index, tensor) for index, tensor in found if tensor is not None]

    def refuse(self, indices: Iterable[int]) -> None:
        """Raises if a result at `indices` is watched: gradients of gradients would flow to the result in eager."""
        for index in sorted(indices):
            if self.is_watched(index):
                raise _not_shown_twice_error(index, self.signature)

    def is_watched(self, index: int) -> bool:
        """Returns whether user code can see the gradient of a result."""
        if index not in self.tensors:
            return False
        tensor = self.tensors[index]()
        if any(self.hooks[index]) or (tensor is not None and tensor.retains_grad):
            return True
        return tensor is not None and not compat.asks_for_all_gradients() and may_request(tensor)


def _not_shown_error() -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            "a gradient between results of a compiled graph cannot be shown in this backward",
            why="A hook, `retain_grad()` or a call of `torch.autograd.grad` watches it. At a view, and with"
            " `create_graph=True` or `is_grads_batched=True`, it is not computed separately from the gradients of the"
            " inputs.",
            fix="Call `minidynamo.graph_break()` in the function after the result that is watched.",
        )
    )


def _not_shown_twice_error(index: int, signature: GraphSignature) -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            f"the gradient of {_name(index, signature)} cannot be shown where gradients are differentiated",
            why="A hook, `retain_grad()` or a call of `torch.autograd.grad` watches it. In eager gradients of gradients"
            " flow to it, since it was saved for backward. In a compiled graph they flow directly to the inputs of the"
            " graph.",
            fix="Remove the hook before the second backward, or run the function without minidynamo there:"
            " `fn.__wrapped__(...)`.",
        )
    )


def _name(index: int, signature: GraphSignature) -> str:
    """Returns a name for the tensor, for error messages."""
    node = signature.graph.nodes[index]
    outputs, result = [node.output], node.position
    if result is not None:
        outputs = [i for i, plan in enumerate(signature.outputs) if (plan.origin, plan.index) == ("graph", result)]
    written = [signature.inputs[m.index] for m in signature.mutations if m.result == result is not None]
    return f"`{written[0]}`" if written else f"result {outputs[0]} of a compiled graph" if outputs else "a result"


def is_cut(node: Any) -> bool:
    """Returns whether incoming gradients at the graph's node include the flow between results."""
    watch: _Watch | None = getattr(node, "watch", None)
    return watch is not None and watch.decided.get(compat.current_backward(), False)


def watched(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Makes nodes of `function` record hooks on results, for `_Watch`."""
    return watch_hooks(function, _notice)


def _notice(node: Any, output: int | None, hooks: Mapping[int, Any]) -> None:
    main, index = graph_node(node, output)
    _recorded_hooks(main)
    for one, at in {(node, output), (main, index)}:
        for number, known in getattr(one, "watched", {}).items():
            if at is None or at == number:
                known.append(hooks)


def _recorded_hooks(main: Any) -> dict[int, list[Mapping[int, Any]]]:
    """Returns the hooks recorded at the graph's node for `recording_saved_results`, by number of the result."""
    if hasattr(main, "results") and not hasattr(main, "watched"):
        main.watched = {number: [] for number in main.results}
    return getattr(main, "watched", {})


@result_node
class DependentResult(torch.autograd.Function):
    """The node of a dependent result. It holds no tensors."""

    boxed_grads_call = True

    @staticmethod
    def forward(
        ctx: Any,
        result_nodes: ResultNodes,
        index: int,
        watch: _Watch,
        value: list[torch.Tensor],
        *dependencies: torch.Tensor,
    ) -> torch.Tensor:
        ctx.result_nodes, ctx.index, ctx.watch = result_nodes, index, watch
        sources = zip(result_nodes.direct_inputs[index], dependencies[1:])
        ctx.zero_templates = {
            source: without_data(like) for source, like in sources if (index, source) in result_nodes.zeros
        }
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        gradients = received(given)
        del given
        gradient = gradients.pop()
        result_nodes: ResultNodes = ctx.result_nodes
        sources = result_nodes.direct_inputs[ctx.index]
        flowing: dict[int, torch.Tensor | None] = {}
        if gradient is not None and ctx.watch.is_watched_now(gradient, result_nodes.uncomputable_inputs[ctx.index]):
            main = graph_node(ctx)[0]
            flowing = dict(
                zip(result_nodes.result_gradients, result_nodes.flow_of(main, ctx.index, gradient), strict=True)
            )
            flowing |= {i: torch.zeros_like(like) for i, like in ctx.zero_templates.items() if flowing.get(i) is None}
        return (None, None, None, None, gradient, *(flowing.get(source) for source in sources))


_depend = compat.raw_apply(watched(DependentResult))
for _node_type in (CompiledResult, LeadingResult):
    watched(_node_type)
