"""Owns the edges from a compiled graph's node to the inputs: autograd visits the same inputs as in eager.

The graph is a single node of autograd's graph, and autograd follows every edge of a node. Where the results in use give
an input no gradient, autograd would visit the input with None: functions of the user would run on zeros, and hooks
would be called. So an input that only some results reach is *separate*: it gets a node of its own, to which the graph's
node has no edge. Each result that reaches the input gets a node before the graph's node, with edges to both nodes. Of
the nodes that are ready, autograd runs the newest first. The graph's node is the newest, so it runs first and leaves
the gradients for the separate nodes. The same holds for gradients that are differentiated themselves
(`double_backward.py`).

A *link* is a tensor without data, with the shape and the history of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import TensorHooks
from minidynamo.autograd.runtime.result_hooks import graph_node, result_node
from minidynamo.autograd.runtime.saved_per_result import received
from minidynamo.core.references import Reference

MOST_RUNS = 16
"""Most backward calls tracked per forward call: more than run at a time."""

Links: TypeAlias = list[torch.Tensor | None]
Gradients: TypeAlias = Sequence[torch.Tensor | None]
Compute: TypeAlias = Callable[[Any, list[torch.Tensor | None]], Gradients]


def without_data(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same kind and shape without memory."""
    empty = value.new_empty(()).expand(value.shape)
    empty.untyped_storage().resize_(0)
    return empty


class _Link(torch.autograd.Function):
    """Makes the link of a tensor. For a separate input, makes a second, empty tensor as the target of edges from
    results."""

    @staticmethod
    def forward(ctx: Any, separate: SeparateInputs | None, index: int, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.separate, ctx.index = separate, index
        ctx.watched = TensorHooks(value)
        link = without_data(value)
        return (link,) if separate is None else (link, value.new_empty(0))

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        gradient = given[0]
        if ctx.separate is not None and given[1] is not None:
            gradient = ctx.separate.take_gradient(ctx.index, gradient)
        if gradient is None:
            ctx.watched.skip_none()
        return (None, None, gradient)


_link = compat.raw_apply(_Link)


def links_to(values: Links) -> Links:
    """Returns links to `values`. A link keeps neither the value nor later writes to it alive.

    A leaf is its own link: it lives as long as its history, and autograd allows no writes to it. Every link has a
    separate node, since gradients of gradients may reach some links only.
    """
    with torch.enable_grad():
        return [value if value is None or value.is_leaf else _link(None, 0, value)[0] for value in values]


class InputNodes:
    """Calls a compiled graph, or a derivative, with the nodes of its inputs.

    `reaching_results[i]` has the positions of the results that reach input i; only inputs that require grad count.
    `reaching` is the number of results that reach any input, `results` the number of all results. `apply` calls the
    autograd function; `compute` is its backward.
    """

    def __init__(
        self,
        reaching_results: Sequence[tuple[int, ...]],
        reaching: int,
        results: int,
        apply: Callable[..., Any],
        compute: Compute,
    ) -> None:
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, positions in enumerate(reaching_results):
            if 0 < len(positions) < reaching:
                groups.setdefault(positions, []).append(index)
        #: Pairs (positions of results, indices of the separate inputs reached by exactly these results).
        self.groups = list(groups.items())
        self.results = results
        self.apply = apply
        self.compute = compute

    def call(self, args: Any, inputs: Links) -> Any:
        """Returns the results. `inputs` has the inputs with grad among `args`, or None instead; the list is emptied."""
        if not self.groups or not torch.is_grad_enabled():
            links = links_to(inputs)
            inputs.clear()
            seed = () if any(link is not None for link in links) else (_GRAD_SEED,)
            return self.apply(args, (None, links), *links, *seed)
        separate = SeparateInputs(self.results, self.compute)
        everything, ends = self.link(separate, inputs)
        if not ends:
            return self.apply(args, (None, everything), *everything)
        links = [None if index in separate.indices else link for index, link in enumerate(everything)]
        outputs = list(self.apply(args, (separate, everything), *links, _GRAD_SEED))
        for position, pairs in ends.items():
            value, held = outputs[position], [link for pair in pairs for link in pair]
            outputs[position] = _lead(separate, position, [value.detach()], held, value, *(pair[-1] for pair in pairs))
        return tuple(outputs)

    def link(self, separate: SeparateInputs, inputs: Links) -> tuple[Links, dict[int, list[list[torch.Tensor]]]]:
        """Returns the links to `inputs`, and per position of a result its [link, empty tensor] pairs of separate
        inputs; empties `inputs`. Leaves are never separate: autograd only adds to their `.grad`."""
        ends: dict[int, list[list[torch.Tensor]]] = {}
        links: dict[int, torch.Tensor] = {}
        for results, indices in self.groups:
            for index in indices:
                value = inputs[index]
                if value is not None and not value.is_leaf:
                    pair = list(_link(separate, index, value))
                    links[index] = pair[0]
                    for position in results:
                        ends.setdefault(position, []).append(pair)
        separate.indices.update(links)
        others = links_to([None if index in links else value for index, value in enumerate(inputs)])
        inputs.clear()
        return [links.get(index, link) for index, link in enumerate(others)], ends


# Makes autograd create the graph's node even if all inputs are separate or get no gradients; never gets a gradient.
_GRAD_SEED = torch.empty(0, requires_grad=True)


class SeparateInputs:
    """A call of a graph with separate inputs.

    `compute` is the graph's backward, called with the graph's node and the gradients of the `results`.
    """

    def __init__(self, results: int, compute: Compute) -> None:
        self.results = results
        self.compute = compute
        #: Indices of the separate inputs among inputs with grad.
        self.indices: set[int] = set()
        #: Released links, by index of the input.
        self.links: dict[int, Reference] = {}
        #: Records by number of the backward, at most MOST_RUNS.
        self.runs: dict[int, _BackwardRun] = {}

    def release(self, kept: Links) -> None:
        """Removes links to separate inputs from the links `kept` by the graph's node: such links die with the results
        reaching the inputs."""
        for index in self.indices:
            if (link := kept[index]) is not None:
                self.links[index], kept[index] = Reference(link), None

    def with_released_links(self, kept: Links) -> Links:
        """Returns the links `kept` by the graph's node, completed with released links still alive."""
        alive = {index: reference() for index, reference in self.links.items()}
        return [alive.get(index, link) for index, link in enumerate(kept)]

    def run(self) -> _BackwardRun:
        """Returns the record of the running backward."""
        number = compat.current_backward()
        if number not in self.runs:
            self.runs[number] = _BackwardRun()
            if len(self.runs) > MOST_RUNS:
                del self.runs[min(self.runs)]
        return self.runs[number]

    def record(self, node: Any, position: int, gradient: torch.Tensor | None) -> None:
        """Records the gradient of a result on its way to the `node` of the graph, since autograd skips that node if all
        requested inputs are separate."""
        run = self.run()
        run.node, run.gradients[position] = node, gradient

    def begin(self) -> None:
        """Forgets the recorded gradients when the graph's node runs: the backward of the node frees gradients."""
        run = self.run()
        run.node, run.gradients = None, {}

    def hold_back(self, found: Gradients) -> Gradients:
        """Stores the gradients of separate inputs. Returns all gradients, with None for separate inputs, for the
        graph's node to return."""
        run = self.run()
        run.found = {index: found[index] for index in self.indices}
        return [None if index in self.indices else gradient for index, gradient in enumerate(found)]

    def take_gradient(self, index: int, given: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the gradient of a separate input, plus the gradient `given` from elsewhere. Runs the graph's backward
        if the graph's node did not run."""
        run = self.run()
        if run.found is None:
            gradients = [run.gradients.get(i) for i in range(self.results)]
            node, run.node, run.gradients = run.node, None, {}
            found = self.compute(node, gradients)
            run.found = {index: found[index] for index in self.indices}
        own = run.found.pop(index, None)
        return own if given is None else given if own is None else own + given


class _BackwardRun:
    """A backward through a call."""

    def __init__(self) -> None:
        #: The graph's node, until it has run.
        self.node: Any = None
        #: Incoming gradients, by position of the result.
        self.gradients: dict[int, torch.Tensor | None] = {}
        #: Gradients of separate inputs, by index; None before the graph's backward has run.
        self.found: dict[int, torch.Tensor | None] | None = None


@result_node
class LeadingResult(torch.autograd.Function):
    """The node of a result that reaches separate inputs; it keeps the `held` links alive. The gradient goes to the
    graph's node unchanged. An empty tensor tells each separate input that there is a gradient."""

    boxed_grads_call = True

    @staticmethod
    def forward(
        ctx: Any,
        separate: SeparateInputs,
        position: int,
        value: list[torch.Tensor],
        held: list[torch.Tensor],
        *next_tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.separate, ctx.position, ctx.held, ctx.ends = separate, position, held, len(next_tensors) - 1
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        gradients = received(given)
        del given
        gradient = gradients.pop()
        ctx.separate.record(graph_node(ctx)[0], ctx.position, gradient)
        end = None if gradient is None else torch.empty(0, device=gradient.device)
        return (None, None, None, None, gradient, *[end] * ctx.ends)


_lead = compat.raw_apply(LeadingResult)
