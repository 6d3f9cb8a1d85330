"""Owns questions about possibly symbolic numbers: sizes, strides, and numbers that are graph inputs.

A symbolic number is a `torch.SymInt`, `SymFloat` or `SymBool`; in a graph, a node computes it. No function here decides
a condition on a symbolic number, which would become a guard: two numbers are equal if their expressions are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.fake.strides import dense_strides


def is_symbolic(value: Any) -> bool:
    """Returns whether `value` is a number unknown until the graph runs."""
    return isinstance(value, compat.SYMBOLIC_NUMBERS) and compat.constant_of(value) is None


def is_number(node: fx.Node) -> bool:
    """Returns whether `node` computes a number that was symbolic in the trace; it may have been proved constant
    since."""
    return isinstance(node.meta.get("val"), compat.SYMBOLIC_NUMBERS)


def has_symbols(value: Any) -> bool:
    """Returns whether `value` is a symbolic number, a tensor with symbolic sizes or strides, or a list with either."""
    if isinstance(value, (list, tuple)):
        return any(map(has_symbols, value))
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return any(map(is_symbolic, (*value.shape, *value.stride(), value.storage_offset())))
    return any(map(is_symbolic, value.shape)) if isinstance(value, torch.Tensor) else is_symbolic(value)


def simplified(number: Any) -> Any:
    """Returns the number, or the value of a symbolic number that was proved constant."""
    if not isinstance(number, compat.SYMBOLIC_NUMBERS):
        return number
    constant = compat.constant_of(number)
    return number if constant is None else constant


def key(number: Any) -> Any:
    """Returns a comparable key: the number itself, or the expression of a symbolic number."""
    number = simplified(number)
    return number.node.expr if isinstance(number, compat.SYMBOLIC_NUMBERS) else number


def is_empty(value: Any) -> bool:
    """Returns whether `value` is a tensor that has no elements in any call."""
    return isinstance(value, torch.Tensor) and any(
        type(size) is int and size == 0 for size in map(simplified, value.shape)
    )


def keys(numbers: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the key of each number."""
    return tuple(map(key, numbers))


def is_dense_in(order: Sequence[int], shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns whether the strides are dense in the given dimension order, ignoring dimensions of size 1."""

    def fits(at_least: Callable[[Any, int], Any]) -> bool:
        dense = dense_strides(order, shape, at_least)
        return all(key(size) == 1 or key(a) == key(b) for size, a, b in zip(shape, dense, strides))

    return fits(torch.sym_max) or fits(lambda size, _: size)
