"""Owns the edges from a compiled graph's node to the inputs: autograd visits the same inputs as in eager.

The graph is a single node of autograd's graph, and autograd follows every edge of a node. If the used results do not
depend on an input, autograd would visit the input with None: functions of the user would run on zeros, and hooks would
be called. So an input that only some results reach is *separate*: it gets a node of its own, to which the graph's node
has no edge. Each result that reaches the input gets a result node with edges to both nodes (`result_nodes.py`). Of the
nodes that are ready, autograd runs the newest first: the graph's node runs before the separate nodes, and leaves their
gradients for them. The same holds for the nodes of differentiable gradients (`double_backward.py`).

A *link* is a tensor without data, with the shape and the history of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import TensorHooks
from minidynamo.core.directives import DISABLED

MOST_RUNS = 16
"""Backward calls that are recorded per forward call: more than run at a time."""

Links: TypeAlias = list[torch.Tensor | None]
Gradients: TypeAlias = Sequence[torch.Tensor | None]
Compute: TypeAlias = Callable[[Any, list[torch.Tensor | None]], Gradients]


def gradient_list(gradients: Sequence[Any]) -> list[torch.Tensor | None]:
    """Returns the arguments of `backward` as a list that may be emptied: the list itself for a boxed Function."""
    return gradients[0] if gradients and isinstance(gradients[0], list) else list(gradients)


def opaque(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Keeps compilers from tracing the backward of a Function: it compiles its graph itself."""
    backward = vars(function)["backward"].__func__
    vars(backward).update(compat.NOT_FOR_TORCH_COMPILE)
    compat.leave_to_python(backward.__code__)
    setattr(backward, DISABLED, "it is the backward of a compiled graph")
    return function


def without_data(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same kind and shape without memory."""
    empty = value.new_empty(()).expand(value.shape)
    empty.untyped_storage().resize_(0)
    return empty


@opaque
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
    def inlined(ctx: Any, saved: Any, tangents: Sequence[torch.Tensor | None]) -> Any:
        return None if ctx.separate is not None else (None, None, tangents[0])

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        gradient = tangents[0]
        if ctx.separate is not None and tangents[1] is not None:
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
    links = list(values)
    others = [i for i, value in enumerate(links) if value is not None and not value.is_leaf]
    if others:
        with torch.enable_grad():
            for i in others:
                links[i] = _link(None, 0, links[i])[0]
    return links


# Makes autograd create a node even if no input requires grad; never gets a gradient.
GRAD_SEED = torch.empty(0, requires_grad=True)


class LinkedInputs:
    """The inputs with grad of one call: the `links` to all inputs, and the separate inputs."""

    def __init__(self, links: Links, separate: SeparateInputs | None = None) -> None:
        self.links = links
        self.separate = separate
        #: Position of a result -> index of each separate input that it reaches -> link and empty tensor.
        self.ends: dict[int, dict[int, list[torch.Tensor]]] = {}

    @property
    def edges(self) -> Links:
        """The tensors that the graph's node has edges to."""
        if self.separate is not None:
            indices = self.separate.indices
            return [*(None if i in indices else link for i, link in enumerate(self.links)), GRAD_SEED]
        return self.links if any(link is not None for link in self.links) else [*self.links, GRAD_SEED]


class InputNodes:
    """Links the inputs of a compiled graph, or of a derivative.

    `reaching_results[i]` has the positions of the results that reach input i, of the inputs that require grad.
    `reaching` is the number of results that reach any input, `results` the number of all results. `compute` is the
    backward of the graph.
    """

    def __init__(
        self, reaching_results: Sequence[tuple[int, ...]], reaching: int, results: int, compute: Compute
    ) -> None:
        #: Pairs (index of an input that may be separate, positions of the results that reach the input).
        self.separable = [
            (i, positions) for i, positions in enumerate(reaching_results) if 0 < len(positions) < reaching
        ]
        self.results = results
        self.compute = compute

    def link(self, inputs: Links) -> LinkedInputs:
        """Returns the links to `inputs`, which are None for inputs without grad; empties the list. Leaves are never
        separate: autograd only adds to their `.grad`."""
        separate = None
        ends: dict[int, dict[int, list[torch.Tensor]]] = {}
        links: dict[int, torch.Tensor] = {}
        for index, results in self.separable if torch.is_grad_enabled() else ():
            value = inputs[index]
            if value is not None and not value.is_leaf:
                separate = separate or SeparateInputs(self.results, self.compute)
                link_and_end = list(_link(separate, index, value))
                links[index], inputs[index] = link_and_end[0], None
                for position in results:
                    ends.setdefault(position, {})[index] = link_and_end
        others = links_to(inputs)
        inputs.clear()
        if separate is None:
            return LinkedInputs(others)
        separate.indices.update(links)
        linked = LinkedInputs([links.get(index, link) for index, link in enumerate(others)], separate)
        linked.ends = ends
        return linked


class SeparateInputs:
    """A call of a graph with separate inputs.

    `compute` is the graph's backward, called with the graph's node and the gradients of the `results`.
    """

    def __init__(self, results: int, compute: Compute) -> None:
        self.results = results
        self.compute = compute
        #: Indices of the separate inputs among inputs with grad.
        self.indices: set[int] = set()
        #: Records by number of the backward, at most MOST_RUNS.
        self.runs: dict[int, _BackwardRun] = {}

    def run(self) -> _BackwardRun:
        """Returns the record of the running backward."""
        number = compat.current_backward()
        if number not in self.runs:
            self.runs[number] = _BackwardRun()
            if len(self.runs) > MOST_RUNS:
                del self.runs[min(self.runs)]
        return self.runs[number]

    def record(self, node: Any, position: int, gradient: torch.Tensor | None) -> None:
        """Records the gradient of a result, for the case that autograd does not run the `node` of the graph: all
        requested inputs are separate."""
        run = self.run()
        run.node, run.gradients[position] = node, gradient

    def begin(self) -> None:
        """Drops the recorded gradients when the graph's node runs: its backward frees gradients early."""
        run = self.run()
        run.node, run.gradients = None, {}

    def hold_back(self, gradients: Gradients) -> Gradients:
        """Stores the gradients of separate inputs. Returns all gradients, with None for separate inputs, for the
        graph's node to return."""
        run = self.run()
        run.input_gradients = {index: gradients[index] for index in self.indices}
        return [None if index in self.indices else gradient for index, gradient in enumerate(gradients)]

    def take_gradient(self, index: int, other: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the gradient of a separate input, plus the gradient `other` from other nodes. Runs the graph's
        backward if the graph's node did not run."""
        run = self.run()
        if run.input_gradients is None:
            gradients = [run.gradients.get(i) for i in range(self.results)]
            node, run.node, run.gradients = run.node, None, {}
            all_gradients = self.compute(node, gradients)
            run.input_gradients = {index: all_gradients[index] for index in self.indices}
        own = run.input_gradients.pop(index, None)
        return own if other is None else other if own is None else own + other


class _BackwardRun:
    """A backward through a call."""

    def __init__(self) -> None:
        #: The graph's node, until it has run.
        self.node: Any = None
        #: Incoming gradients, by position of the result.
        self.gradients: dict[int, torch.Tensor | None] = {}
        #: Gradients of separate inputs, by index; None before the graph's backward has run.
        self.input_gradients: dict[int, torch.Tensor | None] | None = None
