"""Owns numbers that tensors hold, in graphs that are traced without data: symbols by which nothing can be decided.

What reads them is said in `tensor_index.py`. Numbers that are known before a graph runs are others.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo import compat


def number_in_data(env: Any, below: Any) -> torch.SymInt:
    """A number of a ShapeEnv that is at least 0, and less than `below` if that is given; more is not known of it."""
    with env.ignore_fresh_unbacked_symbols():
        number: torch.SymInt = env.create_unbacked_symint()
    _expect(number >= 0)
    if below is not None:
        _expect(number < below)
    return number


def _expect(condition: Any) -> None:
    if isinstance(condition, torch.SymBool):
        condition.node.expect_true(__file__, 0)


def depends_on_data(value: Any) -> bool:
    """Whether `value` is a number that is computed from one that a tensor holds."""
    return isinstance(value, compat.SYMBOLIC_NUMBERS) and bool(_in_data(value))


def hint_of(number: Any) -> int:
    """Return a number of the call that is being compiled for, with 0 for each number that a tensor holds.

    The result is a stand-in: it may decide a layout, an order or an estimate of costs, and never a value. Each use says
    which of these it decides. A number that decides a value is an input of the graph, or is read when the graph runs.
    """
    if not isinstance(number, compat.SYMBOLIC_NUMBERS):
        return int(number)
    node = number.node
    if node.hint is None:
        zero = dict.fromkeys(_in_data(number), compat.symbolic().Integer(0))
        node = type(node)(node.expr.xreplace(zero), node.shape_env, int, None)
    return int(node.hint)


def _in_data(number: Any) -> list[Any]:
    """The symbols of such numbers in the expression of a number."""
    node = number.node
    return [symbol for symbol in node.expr.free_symbols if node.shape_env.is_unbacked_symint(symbol)]
