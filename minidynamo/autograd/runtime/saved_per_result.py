"""Owns saved tensors needed by only some results of a compiled graph: as in eager, such tensors die with the results,
or in backward.

The graph's node lives as long as any result, so it must not save such tensors. Results that need such tensors get a
result node before the graph's node. A result node saves no tensors, because autograd empties each node after running
it. Instead the result node refers to *holders*: nodes that only save tensors, possibly for several result nodes.
`partial_backward.py` assigns tensors to results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.runtime.result_hooks import result_node
from minidynamo.core.references import Reference

EMPTY = torch.empty(0)
"""Replaces saved tensors needed only by unused results."""

# An input with grad, for autograd to make a node; never gets a gradient.
_GRAD_SEED = torch.empty(0, requires_grad=True)


class SavedPerResult:
    """Stores and returns the saved tensors of one compiled graph.

    `kept_for[k]` has the indices of the results that need saved tensor k; () for all results. `differentiable` has the
    position of each result. `freed_with[i]` has the indices of the results for which backward raises after the backward
    of result i; if not empty, no tensor is needed by all results. `held_for` has, per number of an input kept for
    second derivatives, the indices of the results that need the input.
    """

    def __init__(
        self,
        kept_for: Sequence[tuple[int, ...]],
        differentiable: Sequence[int],
        freed_with: Sequence[tuple[int, ...]] = (),
        held_for: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        #: Number of saved tensors.
        self.count = len(kept_for)
        #: Numbers of the saved tensors needed by all results, saved at the graph's node.
        self.common = [i for i, indices in enumerate(kept_for) if not indices]
        #: Per holder: indices of the results, and numbers of the saved tensors.
        self.shared = [
            (frozenset(indices), [i for i, others in enumerate(kept_for) if others == indices])
            for indices in sorted({indices for indices in kept_for if indices})
        ]
        # Results that share a node have the same holders and are freed together. Every result has such a node: autograd
        # runs each node that has an edge to the node of a requested result.
        #: Per number of an input needed by only some results for second derivatives: indices of the results.
        self.held = {i: indices for i, indices in held_for.items() if 0 < len(indices) < len(differentiable)}
        by_holders: dict[tuple[tuple[int, ...], tuple[int, ...], Any], list[int]] = {}
        for index, result in enumerate(differentiable):
            own = tuple(holder for holder, (indices, _) in enumerate(self.shared) if index in indices)
            held = tuple(i for i, indices in self.held.items() if index in indices)
            by_holders.setdefault((own, held, freed_with[index] if (own or held) and freed_with else ()), []).append(
                result
            )
        #: Per result node: holders (indices in `shared`), inputs (numbers), results (positions).
        self.groups = [(own, held, group) for (own, held, _), group in by_holders.items()]
        #: Per result node: indices of the results.
        self.indices = [{differentiable.index(result) for result in group} for *_, group in self.groups]

    def store(
        self, ctx: Any, kept: Sequence[torch.Tensor], results: list[torch.Tensor], box: list[Any]
    ) -> list[torch.Tensor]:
        """Returns the tensors of `kept` to save at the graph's node `ctx`.

        The remaining tensors go into `box`, for `attach_nodes`, and so do results with a result node; `results` keeps a
        detached alias of each.
        """
        returned = set(map(id, results))
        # A tensor with the history of a result would keep the holders of that result alive.
        values = [value.detach() if id(value) in returned or value._is_view() else value for value in kept]
        ctx.holders, ctx.groups = [], []
        shared = [[values[i] for i in indices] for _, indices in self.shared]
        grouped = [[results[i] for i in group] for *_, group in self.groups]
        box[:] = [
            ctx.holders,
            ctx.groups,
            shared,
            grouped,
            ctx.double_backward.move_to_boxes(self.held) if self.held else {},
        ]
        for *_, group in self.groups:
            for i in group:
                results[i] = results[i].detach()
        return [values[i] for i in self.common]

    def attach_nodes(self, results: Sequence[torch.Tensor], box: list[Any]) -> Sequence[torch.Tensor]:
        """Returns the results of a call, each with a node. `results` are the outputs of the graph's node; `box` was
        filled by `store`, and is emptied."""
        references, groups, shared, grouped, boxes = box
        box.clear()
        holders = [_hold(_GRAD_SEED, shared.pop(0)) for _ in self.shared]
        references += [Reference(holder) for holder in holders]
        joined = list(results)
        del results
        for (own, inputs, group), values in zip(self.groups, grouped):
            held = _Holders([*(holders[i] for i in own), *(boxes[i] for i in inputs if i in boxes)])
            groups.append(Reference(held))
            results = _join_results(values, held, *[joined[i] for i in group])
            for i, result in zip(group, results):
                joined[i] = result
        return joined

    def collect(
        self,
        ctx: Any,
        common: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        freed: Collection[int] | None = None,
    ) -> list[torch.Tensor | None]:
        """Returns the saved tensors needed by results with a gradient; None for every further tensor.

        `common` are the tensors saved at `ctx`. Unless the user retains the graph, holders are emptied: every holder
        that was read if `freed` is None; else each result node with all results in `freed` drops its holders. A holder
        that another result node refers to keeps its tensors.
        """
        values: list[torch.Tensor | None] = [None] * self.count
        for i, value in zip(self.common, common):
            values[i] = value
        used = {index for index, tangent in enumerate(tangents) if tangent is not None}
        for (indices, own), reference in zip(self.shared, ctx.holders):
            if not used.isdisjoint(indices):
                node = reference().grad_fn  # alive, since the node of a used result holds it
                for i, value in zip(own, node.saved_tensors):
                    values[i] = value
                if freed is None:
                    node.maybe_clear_saved_tensors()
        for own_places, group in zip(self.indices, ctx.groups if freed else ()):
            held = group()
            if held is not None and own_places.issubset(freed or ()):
                held.clear()
        return values


class _Holders(list[Any]):
    """The holders of a result node, and boxes with inputs. A class of its own, since plain lists cannot be weakly
    referenced."""


class _Holder(torch.autograd.Function):
    """A node that only saves tensors. Autograd's rules for saved tensors apply: later writes are noticed, and the
    user's hooks run."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*values)
        return torch.empty(0)


def received(given: Sequence[Any]) -> list[torch.Tensor | None]:
    """Returns the arguments of `backward` as a list to be emptied; with `boxed_grads_call`, autograd's own list."""
    return given[0] if compat.HAS_BOXED_GRADIENTS else list(given)


@result_node
class CompiledResult(torch.autograd.Function):
    """The node of results with the same holders. Gradients pass through unchanged."""

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
_join_results = compat.raw_apply(CompiledResult)
