"""Owns unbacked symbols: numbers read from tensors, in graphs that are traced without data.

`tensor_index.py` reads such numbers. Numbers that are known before a graph runs are not unbacked.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo import compat


def unbacked_symbol(env: Any, below: Any) -> torch.SymInt:
    """Creates an unbacked symbol in a ShapeEnv, at least 0, and less than `below` unless that is None."""
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
    """Returns whether `value` is computed from an unbacked symbol."""
    return isinstance(value, compat.SYMBOLIC_NUMBERS) and bool(_unbacked_symbols(value))


def hint_of(number: Any) -> int:
    """Returns the value of a number in the compiled call, with 0 for each unbacked symbol.

    The result is approximate: it may decide a layout, an order or an estimate of costs, and never a value. Each call
    states its use. A number that decides a value is an input of the graph, or is read when the graph runs.
    """
    if not isinstance(number, compat.SYMBOLIC_NUMBERS):
        return int(number)
    node = number.node
    if node.hint is None:
        zero = dict.fromkeys(_unbacked_symbols(number), compat.symbolic().Integer(0))
        node = type(node)(node.expr.xreplace(zero), node.shape_env, int, None)
    return int(node.hint)


def _unbacked_symbols(number: Any) -> list[Any]:
    """Lists the unbacked symbols in the expression of a number."""
    node = number.node
    return [symbol for symbol in node.expr.free_symbols if node.shape_env.is_unbacked_symint(symbol)]
