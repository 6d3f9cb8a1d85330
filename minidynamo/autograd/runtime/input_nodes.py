"""Owns how autograd comes from a compiled graph, or from gradients that are differentiated themselves, to what they are
computed from: to those inputs that eager comes to from the results in use.

The graph is one node of autograd's graph, and autograd calls all that a node has edges to: without a gradient where the
results in use give none, but then functions of the user's run on zeros, and hooks are called. So inputs that not all
results lead to lie behind nodes of their own, to which the graph's has no edge. A result that leads there gets a node
in front of the graph's, with edges to both. Of the nodes that are ready autograd runs the one that was made last: the
graph's, which leaves the gradients for those that were made before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import Watched
from minidynamo.autograd.runtime.result_hooks import in_front, main_node
from minidynamo.autograd.runtime.saved_per_result import received
from minidynamo.core.references import Reference

MOST_RUNS = 16
"""How many backward calls of one forward call are told apart: more than run at a time."""

Links: TypeAlias = list[torch.Tensor | None]
Gradients: TypeAlias = Sequence[torch.Tensor | None]
Compute: TypeAlias = Callable[[Any, list[torch.Tensor | None]], Gradients]


def without_data(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same kind and shape that takes no memory."""
    made = value.new_empty(()).expand(value.shape)
    made.untyped_storage().resize_(0)
    return made


class _Link(torch.autograd.Function):
    """Another tensor of the same shape, under its history, without its data; of what lies apart at a place, also one of
    no size, to which results have an edge."""

    @staticmethod
    def forward(ctx: Any, apart: Apart | None, place: int, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.apart, ctx.place = apart, place
        ctx.watched = Watched(value)
        link = without_data(value)
        return (link,) if apart is None else (link, value.new_empty(0))

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        gradient = given[0]
        if ctx.apart is not None and given[1] is not None:
            gradient = ctx.apart.collected(ctx.place, gradient)
        if gradient is None:
            ctx.watched.spare()
        return (None, None, gradient)


_link = compat.raw_apply(_Link)


def linked(values: Links) -> Links:
    """What stands for `values` and their history without keeping them alive, nor what is written to them later.

    Leaves, which live as long as their history does and which autograd does not let be written, stand for themselves.
    Each of the others has a node of its own: gradients of gradients may lead to some of them only.
    """
    with torch.enable_grad():
        return [value if value is None or value.is_leaf else _link(None, 0, value)[0] for value in values]


def in_order(edges: Sequence[int]) -> Callable[[Gradients], Gradients]:
    """A function that brings links, or gradients, into the order of `edges`, see `GraphSignature`."""
    return (lambda values: [values[place] for place in edges]) if edges else (lambda values: values)


class Ways:
    """How a node with so many `results`, `leading` of which lead to inputs, is called by `apply`; `compute` is its
    backward. `ways` are, for each input that requires grad, the positions of the results that lead there, and `edges`
    the order of the inputs. `groups` has the places of inputs to which not all lead, by those that do."""

    def __init__(
        self,
        ways: Sequence[tuple[int, ...]],
        leading: int,
        results: int,
        apply: Callable[..., Any],
        compute: Compute,
        edges: Sequence[int] = (),
    ) -> None:
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, positions in enumerate(ways):
            if 0 < len(positions) < leading:
                groups.setdefault(positions, []).append(place)
        self.groups = list(groups.items())
        self.results = results
        self.in_order = in_order(edges)
        self.apply = apply
        self.compute = compute

    def call(self, args: Any, known: Links) -> Any:
        """The results. `known` has the inputs among `args` that require grad, or None instead, and is emptied."""
        if not self.groups or not torch.is_grad_enabled():
            links = linked(known)
            known.clear()
            seed = () if any(link is not None for link in links) else (_SEED,)
            return self.apply(args, (None, links), *self.in_order(links), *seed)
        apart = Apart(self.results, self.compute)
        everything, ends = self.link(apart, known)
        if not ends:
            return self.apply(args, (None, everything), *self.in_order(everything))
        links = [None if place in apart.places else link for place, link in enumerate(everything)]
        made = list(self.apply(args, (apart, everything), *self.in_order(links), _SEED))
        for position, behind in ends.items():
            value, held = made[position], [link for links in behind for link in links]
            made[position] = _lead(apart, position, [value.detach()], held, value, *(links[-1] for links in behind))
        return tuple(made)

    def link(self, apart: Apart, known: Links) -> tuple[Links, dict[int, list[list[torch.Tensor]]]]:
        """The links to `known`, which is emptied, and for results those to what lies apart, each with the end of an
        edge. Leaves do not lie apart: autograd only adds to their `.grad`."""
        ends: dict[int, list[list[torch.Tensor]]] = {}
        links: dict[int, torch.Tensor] = {}
        for results, places in self.groups:
            for place in places:
                value = known[place]
                if value is not None and not value.is_leaf:
                    made = list(_link(apart, place, value))
                    links[place] = made[0]
                    for position in results:
                        ends.setdefault(position, []).append(made)
        apart.places.update(links)
        others = linked([None if place in links else value for place, value in enumerate(known)])
        known.clear()
        return [links.get(place, link) for place, link in enumerate(others)], ends


# Makes autograd see the graph's node where all inputs lie apart, or get no gradients: none ever comes here.
_SEED = torch.empty(0, requires_grad=True)


class Apart:
    """One call of a graph with inputs that lie apart. `compute` is the graph's backward, given its node and what comes
    in for its `results`; `places` are those of the inputs."""

    def __init__(self, results: int, compute: Compute) -> None:
        self.results = results
        self.compute = compute
        self.places: set[int] = set()
        self.links: dict[int, Reference] = {}
        self.runs: dict[int, _Run] = {}

    def let_go(self, kept: Links) -> None:
        """Have the graph's node keep no link to what lies apart: that dies with the results that lead there."""
        for place in self.places:
            if (link := kept[place]) is not None:
                self.links[place], kept[place] = Reference(link), None

    def completed(self, kept: Links) -> Links:
        """What the graph's node has kept with the links that it let go, if they are still there."""
        alive = {place: reference() for place, reference in self.links.items()}
        return [alive.get(place, link) for place, link in enumerate(kept)]

    def run(self) -> _Run:
        """The backward that is running."""
        number = compat.current_backward()
        if number not in self.runs:
            self.runs[number] = _Run()
            if len(self.runs) > MOST_RUNS:
                del self.runs[min(self.runs)]
        return self.runs[number]

    def note(self, node: Any, position: int, gradient: torch.Tensor | None) -> None:
        """Note what comes in for a result, on its way to the `node` of the graph: that does not run where it does not
        lead to what autograd is asked for."""
        run = self.run()
        run.node, run.gradients[position] = node, gradient

    def begin(self) -> None:
        """The graph's node runs: what comes in dies there."""
        run = self.run()
        run.node, run.gradients = None, {}

    def left(self, found: Gradients) -> Gradients:
        """What the graph's node returns of the gradients that it has found. The others stay here."""
        run = self.run()
        run.found = {place: found[place] for place in self.places}
        return [None if place in self.places else gradient for place, gradient in enumerate(found)]

    def collected(self, place: int, given: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient at a place, and what is `given` from elsewhere."""
        run = self.run()
        if run.found is None:
            gradients = [run.gradients.get(i) for i in range(self.results)]
            node, run.node, run.gradients = run.node, None, {}
            found = self.compute(node, gradients)
            run.found = {place: found[place] for place in self.places}
        own = run.found.pop(place, None)
        return own if given is None else given if own is None else own + given


class _Run:
    """One backward through a call: `gradients` of results, by their positions, until the ones of inputs are `found`."""

    def __init__(self) -> None:
        self.node: Any = None
        self.gradients: dict[int, torch.Tensor | None] = {}
        self.found: dict[int, torch.Tensor | None] | None = None


@in_front
class LeadingResult(torch.autograd.Function):
    """The node of a result that leads to inputs which lie apart, to which it has `held` links. The gradient goes to the
    graph's node as it is; those inputs are told that there is one by something of no size."""

    boxed_grads_call = True

    @staticmethod
    def forward(
        ctx: Any,
        apart: Apart,
        position: int,
        value: list[torch.Tensor],
        held: list[torch.Tensor],
        *behind: torch.Tensor,
    ) -> torch.Tensor:
        ctx.apart, ctx.position, ctx.held, ctx.ends = apart, position, held, len(behind) - 1
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        gradients = received(given)
        del given
        gradient = gradients.pop()
        ctx.apart.note(main_node(ctx)[0], ctx.position, gradient)
        end = None if gradient is None else torch.empty(0, device=gradient.device)
        return (None, None, None, None, gradient, *[end] * ctx.ends)


_lead = compat.raw_apply(LeadingResult)
