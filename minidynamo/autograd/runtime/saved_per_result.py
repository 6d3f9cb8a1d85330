"""Owns what a compiled graph keeps for some of its results alone: as in eager, it dies with them, or in backward.

A compiled graph is one node of autograd's graph, which lives as long as any of its results. So results for which
something is kept apart get a node of their own in front of it. That holds no tensors itself, since autograd empties a
node that has run: it holds *holders*, which keep what several results may need. What is kept for which results is found
out in `partial_backward.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.runtime.result_hooks import in_front
from minidynamo.core.references import Reference

NOTHING = torch.empty(0)
"""Stands for what was kept for results that nobody uses."""

# What makes autograd keep something: no gradient ever comes here.
_SEED = torch.empty(0, requires_grad=True)


class SavedPerResult:
    """Keeps what backward takes of one compiled graph.

    `kept_for` has for each tensor that is saved the results that it is kept for, by their places among the
    `differentiable` ones; () for all of them. Where backward may run for one result and later for another, `used_up`
    has those that it refuses behind each, and nothing is kept for all alike. `held_for` has the same of inputs that are
    held for second derivatives, by their numbers.
    """

    def __init__(
        self,
        kept_for: Sequence[tuple[int, ...]],
        differentiable: Sequence[int],
        used_up: Sequence[tuple[int, ...]] = (),
        held_for: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        self.count = len(kept_for)
        self.common = [i for i, places in enumerate(kept_for) if not places]
        self.apart = [
            (frozenset(places), [i for i, others in enumerate(kept_for) if others == places])
            for places in sorted({places for places in kept_for if places})
        ]
        # Results that share a node have the same holders, and are used up together. All have such a node: autograd runs
        # what has an edge to the node of a result that it is asked for.
        self.held = {i: places for i, places in held_for.items() if 0 < len(places) < len(differentiable)}
        by_holders: dict[tuple[tuple[int, ...], tuple[int, ...], Any], list[int]] = {}
        for place, result in enumerate(differentiable):
            own = tuple(holder for holder, (places, _) in enumerate(self.apart) if place in places)
            held = tuple(i for i, places in self.held.items() if place in places)
            by_holders.setdefault((own, held, used_up[place] if (own or held) and used_up else ()), []).append(result)
        self.groups = [(own, held, group) for (own, held, _), group in by_holders.items()]
        self.places = [{differentiable.index(result) for result in group} for *_, group in self.groups]

    def set_apart(
        self, ctx: Any, kept: Sequence[torch.Tensor], results: list[torch.Tensor], box: list[Any]
    ) -> list[torch.Tensor]:
        """Those of `kept` that the node `ctx` of the whole graph keeps. All else goes into `box`, for `joined`, and so
        do results with a node of their own, in whose places something without their data is left."""
        returned = set(map(id, results))
        # What has the history of a result holds what is kept for that.
        values = [value.detach() if id(value) in returned or value._is_view() else value for value in kept]
        ctx.holders, ctx.groups = [], []
        apart = [[values[i] for i in places] for _, places in self.apart]
        grouped = [[results[i] for i in group] for *_, group in self.groups]
        box[:] = [ctx.holders, ctx.groups, apart, grouped, ctx.again.set_apart(self.held) if self.held else {}]
        for *_, group in self.groups:
            for i in group:
                results[i] = results[i].detach()
        return [values[i] for i in self.common]

    def joined(self, made: Sequence[torch.Tensor], box: list[Any]) -> Sequence[torch.Tensor]:
        """The results of a call, each behind its node, given what autograd made of those that `set_apart` left."""
        references, groups, apart, grouped, boxes = box
        box.clear()
        holders = [_hold(_SEED, apart.pop(0)) for _ in self.apart]
        references += [Reference(holder) for holder in holders]
        joined = list(made)
        del made
        for (own, inputs, group), values in zip(self.groups, grouped):
            held = _Held([*(holders[i] for i in own), *(boxes[i] for i in inputs if i in boxes)])
            groups.append(Reference(held))
            results = _behind(values, held, *[joined[i] for i in group])
            for i, result in zip(group, results):
                joined[i] = result
        return joined

    def gathered(
        self,
        ctx: Any,
        common: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        gone: Collection[int] | None = None,
    ) -> list[torch.Tensor | None]:
        """All that was kept for results that a gradient comes in for; None for what was not. `common` is what `ctx`
        itself has kept. What is held elsewhere is let go, unless the user retains the graph: all of it, or that of
        results which are `gone` by now. What others need as well, they go on to hold."""
        values: list[torch.Tensor | None] = [None] * self.count
        for i, value in zip(self.common, common):
            values[i] = value
        used = {place for place, tangent in enumerate(tangents) if tangent is not None}
        for (places, own), reference in zip(self.apart, ctx.holders):
            if not used.isdisjoint(places):
                node = reference().grad_fn  # alive, since the node of the result that is used holds it
                for i, value in zip(own, node.saved_tensors):
                    values[i] = value
                if gone is None:
                    node.maybe_clear_saved_tensors()
        for own_places, group in zip(self.places, ctx.groups if gone else ()):
            held = group()
            if held is not None and own_places.issubset(gone or ()):
                held.clear()
        return values


class _Held(list[Any]):
    """The holders of the results of one node, and boxes with inputs; for weak references."""


class _Holder(torch.autograd.Function):
    """A node that only keeps tensors, as autograd keeps them: it notices writes to them, and the user's hooks apply."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*values)
        return torch.empty(0)


def received(given: Sequence[Any]) -> list[torch.Tensor | None]:
    """What autograd gives to `backward` of a node, as a list to be emptied; with `boxed_grads_call` it may be one."""
    return given[0] if compat.HAS_BOXED_GRADIENTS else list(given)


@in_front
class CompiledResult(torch.autograd.Function):
    """The node of results that share their holders. Gradients pass through it as they are."""

    boxed_grads_call = True

    @staticmethod
    def forward(ctx: Any, values: list[torch.Tensor], holders: list[Any], *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.holders = holders
        ctx.set_materialize_grads(False)
        results = tuple(values)
        values.clear()
        return results

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        gradients = received(given)
        passed = (None, None, *gradients)
        gradients.clear()
        return passed


_hold = compat.raw_apply(_Holder)
_behind = compat.raw_apply(CompiledResult)
