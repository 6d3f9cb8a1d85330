"""Owns what gradients take that a compiled backward does not come to: those of arguments that a program returns, and of
views of them.

The runtime makes such views of the real arguments (`outputs.py`), so autograd itself leads their gradients back, and
adds them to what the graph's backward gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.chains import has_chains
from minidynamo.autograd.numbers import key
from minidynamo.autograd.signature import GraphSignature, OutputPlan
from minidynamo.numbers_in_data import hint_of
from minidynamo.storages import storage_bytes


@dataclass(frozen=True)
class GradientsApart:
    """The bytes of those that wait while the graph's backward runs, one number for each, and of what is made of them
    behind it."""

    waiting: tuple[int, ...] = ()
    behind: int = 0


def gradients_apart(
    signature: GraphSignature, flat: Sequence[Any], results: Sequence[Any], repeated: bool = False
) -> GradientsApart:
    """What they take: `flat` are the arguments, `results` the nodes of what the program returns. `repeated`: each comes
    in as one number.

    Autograd comes to what is made last first: a view that is made behind the graph has become a gradient as large as
    its argument when the graph's backward begins, one that is made before (`early`) does so when that has run.
    """
    early: list[int] = []
    late: dict[int, int] = {}
    behind = 0
    for plan, view in _views_of_arguments(signature, results):
        _, index = signature.origin(plan)
        given, whole = storage_bytes(flat[index]), _is_whole(view, flat[index])
        comes_in = 0 if repeated else hint_of(view.numel()) * view.itemsize
        if plan.early and not has_chains(signature):
            early.append(comes_in)
            behind = max(behind, 0 if whole else given)
        else:
            late[index] = max(late.get(index, 0), comes_in if whole else given)
    return GradientsApart((*filter(None, (*early, *late.values())),), behind)


def become_others(signature: GraphSignature, flat: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether something is made of a gradient that backward does not come to, as of that of a part of an argument."""
    return any(
        not _is_whole(view, flat[signature.origin(plan)[1]]) for plan, view in _views_of_arguments(signature, results)
    )


def _views_of_arguments(signature: GraphSignature, results: Sequence[Any]) -> Iterator[tuple[OutputPlan, torch.Tensor]]:
    """The plans of results that are arguments, or views of these, with a gradient, and what each is."""
    for plan, node in zip(signature.outputs, results):
        origin, index = signature.origin(plan)
        value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if origin == "input" and isinstance(value, torch.Tensor) and index in signature.gradients:
            steps = [plan]
            while steps[-1].origin == "view":
                steps.append(signature.views[steps[-1].index])
            if not any(step.detach or step.no_grad for step in steps):
                yield plan, value


def _is_whole(view: torch.Tensor, argument: torch.Tensor) -> bool:
    """Whether a view shows each element of an argument once, so that its gradient becomes that of the argument as it
    is."""
    return bool(key(view.numel()) == key(argument.numel()))
