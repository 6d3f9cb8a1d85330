"""Owns what the user may say about saved tensors: a policy per tensor, and a budget for all of them.

It chooses which values may be computed a second time; which of them are kept then is `partition.py`'s minimum cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from minidynamo.compat import OpOverload
from minidynamo.errors import ArgumentError, Diagnostic, summary
from minidynamo.memory.saved import SavedValue

SavePolicy = Callable[[SavedValue], Any]
"""Asked for each tensor that backward may want: returns "save", "recompute", or None to leave it to minidynamo."""

# What costs more than reading its arguments a few times.
_DEAR = ("mm", "conv", "attention", "linear", "lstm", "gru", "rnn", "fft", "linalg", "einsum")


@dataclass(frozen=True)
class PolicyChoices:
    """What a policy said: values that are kept if backward needs them, and values that are computed again. Those in
    `eager` are kept because eager keeps them."""

    keep: frozenset[fx.Node] = field(default_factory=frozenset)
    again: frozenset[fx.Node] = field(default_factory=frozenset)
    eager: frozenset[fx.Node] = field(default_factory=frozenset)

    def kept_as(self, eager: frozenset[fx.Node], anew: frozenset[fx.Node]) -> PolicyChoices:
        """The same, but that what backward needs of `eager` is kept, whatever else could be, and nothing of `anew`."""
        return PolicyChoices(self.keep | eager, self.again - eager | anew, eager)


def ask(
    policy: SavePolicy,
    candidates: Iterable[fx.Node],
    record: Callable[[fx.Node], SavedValue],
    fixed: Collection[fx.Node],
) -> PolicyChoices:
    """What `policy` says of each of `candidates`, described by `record`. Those in `fixed` cannot be computed again.

    Raises ArgumentError (MD409) for another answer than "save", "recompute" and None, when it asks for what cannot be
    done, and when it raises.
    """
    answers: dict[fx.Node, str] = {}
    for node in candidates:
        described = record(node)
        try:
            answer = policy(described)
        except Exception as error:
            what = f"save_policy= raised {summary(error)}"
            raise ArgumentError(Diagnostic("MD409", what, fix="Repair it: it gets one SavedValue.")) from error
        if answer is None:
            continue
        if answer not in ("save", "recompute"):
            what = f"save_policy= returned {answer!r} for the result of {described.op}"
            raise ArgumentError(Diagnostic("MD409", what, fix='Return "save", "recompute", or None for the default.'))
        if answer == "recompute" and node in fixed:
            what = f"save_policy= wants the result of {described.op} computed again, which cannot be done"
            why = "It draws random numbers or has effects, so it runs once."
            where = described.user_location
            fix = 'Return "save" or None for it.'
            raise ArgumentError(Diagnostic("MD409", what, why=why, where=where, fix=fix))
        answers[node] = answer
    chosen = {kind: frozenset(node for node, answer in answers.items() if answer == kind) for kind in answers.values()}
    return PolicyChoices(chosen.get("save", frozenset()), chosen.get("recompute", frozenset()))


def by_cost(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """`nodes`, those first whose second computation costs least: pointwise ones, then reductions, then products."""
    return sorted(nodes, key=_cost)


def _cost(node: fx.Node) -> int:
    if not isinstance(node.target, OpOverload):
        return 0
    name = str(node.target.overloadpacket.__name__)
    if any(part in name for part in _DEAR):
        return 2
    return 0 if torch.Tag.pointwise in node.target.tags else 1


def within_budget(
    budget: float, more: list[fx.Node], cut: Callable[[frozenset[fx.Node]], tuple[int, list[fx.Node]]]
) -> list[fx.Node]:
    """The values to keep under a budget between 1 (the default choice) and 0 (as little as possible).

    `cut(again)` gives the bytes and values that are kept when the values in `again` may be computed a second time, too.
    `more` are such values in the order in which they are tried: the fewest that reach the budget. More of them never
    keep more bytes, so that a smaller budget never does either.
    """
    high, kept = cut(frozenset())
    if budget >= 1 or not more:
        return kept
    low, least = cut(frozenset(more))
    limit = low + budget * (high - low)
    if high <= limit:
        return kept
    few, many, best = 0, len(more), least
    while many - few > 1:  # `few` of them keep too much, `many` do not
        middle = (few + many) // 2
        size, found = cut(frozenset(more[:middle]))
        if size <= limit:
            many, best = middle, found
        else:
            few = middle
    return best
