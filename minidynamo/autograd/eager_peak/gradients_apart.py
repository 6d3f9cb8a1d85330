"""Owns what gradients take that a compiled backward does not come to: of views that the runtime makes of arguments
and of what the graph returns.

Autograd itself leads these back to what they are views of (`autograd/functional/outputs.py` says which views there
are), and adds the gradients of arguments to what the graph's backward gives.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.numbers import key
from minidynamo.autograd.graph.signature import GraphSignature, OutputPlan
from minidynamo.autograd.partition.minimum_cut import bytes_of
from minidynamo.autograd.runtime.result_nodes import has_result_nodes
from minidynamo.graph.unbacked_symints import hint_of

Wholes = Mapping[tuple[str, int], torch.Tensor]
"""What results of a program are, or are views of, by kind and index: arguments ("input") and what the graph returns
("graph")."""


@dataclass(frozen=True)
class GradientsApart:
    """The bytes of those that wait while the graph's backward runs, one number for each, and of what is made of them
    behind it; and the positions of what the graph returns whose gradients are made of those of parts."""

    waiting: tuple[int, ...] = ()
    behind: int = 0
    joined: frozenset[int] = frozenset()


def gradients_apart(
    signature: GraphSignature, wholes: Wholes, results: Sequence[Any], repeated: bool = False
) -> GradientsApart:
    """What they take: `results` are the nodes of what the program returns. `repeated`: each comes in as one number.

    Autograd comes to what is made last first: a view that is made behind the graph has become a gradient as large as
    its argument when the graph's backward begins, one that is made before (`early`) does so when that has run.
    """
    early: list[int] = []
    late: dict[int, int] = {}
    joined: set[int] = set()
    behind = 0
    for plan, view in _with_gradients(signature, results):
        origin, index = signature.origin(plan)
        whole = wholes[origin, index]
        is_part, given = _is_part(view, whole), bytes_of(whole)
        comes_in = 0 if repeated else _bytes(view)
        if origin == "graph":
            joined.update([index] if is_part else ())
        elif plan.early and not has_result_nodes(signature):
            early.append(comes_in)
            others = given - _bytes(view) if any(step.op is operator.getitem for step in plan.steps) else 0
            behind = max(behind, given + others if is_part else 0)  # zeros for the others in a list of views
        else:
            late[index] = max(late.get(index, 0), given if is_part else comes_in)
    return GradientsApart((*filter(None, (*early, *late.values())),), behind, frozenset(joined))


def returns_parts(signature: GraphSignature, wholes: Wholes, results: Sequence[Any]) -> bool:
    """Whether something larger is made of a gradient that backward does not come to: it is that of a part."""
    return any(_is_part(view, wholes[signature.origin(plan)]) for plan, view in _with_gradients(signature, results))


def _with_gradients(signature: GraphSignature, results: Sequence[Any]) -> Iterator[tuple[OutputPlan, torch.Tensor]]:
    """The plans of results that have a gradient, and what each is."""
    for plan, node in zip(signature.outputs, results):
        origin, index = signature.origin(plan)
        value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        known = {"input": signature.gradients, "graph": signature.differentiable_results}.get(origin, ())
        if isinstance(value, torch.Tensor) and index in known:
            steps = [plan]
            while steps[-1].origin == "view":
                steps.append(signature.views[steps[-1].index])
            if not any(step.detach or step.no_grad for step in steps):
                yield plan, value


def _bytes(view: torch.Tensor) -> int:
    # Cost only: bytes for the prediction of peaks.
    return hint_of(view.numel()) * view.itemsize


def _is_part(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a gradient of another size is made of that of a view; else it becomes that of the whole as it is."""
    return bool(key(view.numel()) != key(whole.numel()))
