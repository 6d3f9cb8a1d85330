"""Owns the user's control over saved tensors: a policy per tensor, and a budget for all tensors.

The policy decides which values may be recomputed; the minimum cut of `minimum_cut.py` then chooses the saved tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from typing import Any

import torch
from torch import fx

from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.errors import ArgumentError, Diagnostic, summary
from minidynamo.memory.plan import SavedValue

SavePolicy = Callable[[SavedValue], Any]
"""Called for each candidate; returns "save", "recompute", or None to let minidynamo decide."""

# Name parts of operators that cost more than a few reads of their arguments.
_EXPENSIVE = ("mm", "conv", "attention", "linear", "lstm", "gru", "rnn", "fft", "linalg", "einsum")


@record(frozen=True)
class PolicyChoices:
    """The answers of a save policy."""

    #: Values to save if backward needs them.
    keep: frozenset[fx.Node] = field(default_factory=frozenset)
    #: Values to recompute.
    recompute: frozenset[fx.Node] = field(default_factory=frozenset)
    #: The values in `keep` because eager saves them.
    eager: frozenset[fx.Node] = field(default_factory=frozenset)

    def with_eager_choices(self, eager: frozenset[fx.Node]) -> PolicyChoices:
        """Returns these choices with `eager` added to `keep`."""
        return PolicyChoices(self.keep | eager, self.recompute - eager, eager)


def ask_policy(
    policy: SavePolicy,
    candidates: Iterable[fx.Node],
    record: Callable[[fx.Node], SavedValue],
    fixed: Collection[fx.Node],
) -> PolicyChoices:
    """Calls `policy` for each candidate, described by `record`. Values in `fixed` cannot be recomputed.

    Raises ArgumentError (MD409) if the policy raises, returns another answer than "save", "recompute" or None, or asks
    to recompute a fixed value.
    """
    answers: dict[fx.Node, str] = {}
    for node in candidates:
        saved_value = record(node)
        try:
            answer = policy(saved_value)
        except Exception as error:
            what = f"save_policy= raised {summary(error)}"
            raise ArgumentError(
                Diagnostic("MD409", what, fix="Repair the policy: its argument is a SavedValue.")
            ) from error
        if answer is None:
            continue
        if answer not in ("save", "recompute"):
            what = f"save_policy= returned {answer!r} for the result of {saved_value.op}"
            raise ArgumentError(Diagnostic("MD409", what, fix='Return "save", "recompute", or None for the default.'))
        if answer == "recompute" and node in fixed:
            what = f"save_policy= wants the result of {saved_value.op} recomputed, which is impossible"
            why = "The operation draws random numbers or has effects, so it runs once."
            where = saved_value.user_location
            fix = 'Return "save" or None for this result.'
            raise ArgumentError(Diagnostic("MD409", what, why=why, where=where, fix=fix))
        answers[node] = answer
    chosen = {kind: frozenset(node for node, answer in answers.items() if answer == kind) for kind in answers.values()}
    return PolicyChoices(chosen.get("save", frozenset()), chosen.get("recompute", frozenset()))


def by_cost(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Returns `nodes` sorted by the cost of recomputation: pointwise operations, then reductions, then products."""
    return sorted(nodes, key=_cost)


def _cost(node: fx.Node) -> int:
    if not isinstance(node.target, OpOverload):
        return 0
    name = str(node.target.overloadpacket.__name__)
    if any(part in name for part in _EXPENSIVE):
        return 2
    return 0 if torch.Tag.pointwise in node.target.tags else 1


def within_budget(
    budget: float, candidates: list[fx.Node], cut: Callable[[frozenset[fx.Node]], tuple[int, list[fx.Node]]]
) -> list[fx.Node]:
    """Returns the values to save under a budget between 1 (the default choice) and 0 (as few bytes as possible).

    `cut(recompute)` returns the saved bytes and values if the values in `recompute` may be recomputed as well.
    `candidates` are candidates for `recompute`, in the order of trial; the fewest that reach the budget are used. More
    candidates never save more bytes, so a smaller budget never saves more bytes than a larger budget.
    """
    high, saved = cut(frozenset())
    if budget >= 1 or not candidates:
        return saved
    low, least = cut(frozenset(candidates))
    limit = low + budget * (high - low)
    if high <= limit:
        return saved
    too_few, enough, best = 0, len(candidates), least
    while enough - too_few > 1:  # by bisection
        middle = (too_few + enough) // 2
        size, values = cut(frozenset(candidates[:middle]))
        if size <= limit:
            enough, best = middle, values
        else:
            too_few = middle
    return best
