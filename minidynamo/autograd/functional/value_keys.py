"""Owns names of values in functional graphs that do not depend on the graph: what a value is computed from, and how.

Graphs that are traced from one program, in one process or another, call equal values by equal names, wherever they
stand in them. Random numbers are told apart by how many were drawn before. Who looks for a value in another graph is
the business of `autograd/runtime/derivatives.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.graph.numbers import is_number, key
from minidynamo.autograd.graph.recomputation import is_random, uses_generator
from minidynamo.compat import OpOverload
from minidynamo.graph.unbacked_symints import depends_on_data

LARGEST_CONSTANT = 1 << 16
"""Elements of a constant that is looked at; a larger one is known by its name alone."""

Symbols = dict[Any, tuple[int, str, int]]
"""Where a call finds the value of each symbol: the input, "number", "size" or "stride", and the dimension."""


def symbols_of(flat: Iterable[Any]) -> Symbols:
    """The symbols of the fake inputs."""
    found: Symbols = {}
    for i, value in enumerate(flat):
        for kind, dim, number in numbers_in(value):
            if isinstance(number, compat.SYMBOLIC_NUMBERS) and getattr(key(number), "is_symbol", False):
                found.setdefault(key(number), (i, kind, dim))
    return found


def written(number: Any) -> Any:
    """The number, or the expression of a symbolic one as it was made. What is decided later makes it no other."""
    return compat.expression_of(number) if isinstance(number, compat.SYMBOLIC_NUMBERS) else number


def numbers_in(value: Any) -> Iterable[tuple[str, int, Any]]:
    """The numbers in an input, each with its kind and dimension, as in `Symbols`."""
    if not isinstance(value, torch.Tensor):
        return [("number", 0, value)]
    strides = value.stride() if value.layout is torch.strided else ()
    return [
        *(("size", dim, size) for dim, size in enumerate(value.shape)),
        *(("stride", dim, stride) for dim, stride in enumerate(strides)),
    ]


def symbol_values(symbols: Symbols, flat: Sequence[Any]) -> dict[Any, Any]:
    """What the symbols are for the inputs of one call."""
    values = {}
    for symbol, (i, kind, dim) in symbols.items():
        value = flat[i]
        values[symbol] = value if kind == "number" else value.shape[dim] if kind == "size" else value.stride(dim)
    return values


def value_keys(
    functional: FunctionalGraph, symbols: Symbols, expression: Callable[[Any], Any] = key
) -> dict[fx.Node, str]:
    """A name for each value of a functional graph. `expression` says what a symbolic number is called."""
    inputs = {node: i for i, node in enumerate(functional.placeholders)}
    names = {symbol: type(symbol)(f"{kind}_{i}_{dim}") for symbol, (i, kind, dim) in symbols.items()}
    found: dict[fx.Node, str] = {}
    drawn = 0
    for node in functional.emitter.graph.nodes:
        if is_number(node) and not depends_on_data(node.meta["val"]):
            number = expression(node.meta["val"])
            found[node] = f"number {number.xreplace(names) if hasattr(number, 'xreplace') else number}"
        elif node in inputs:
            found[node] = f"input {inputs[node]}"
        elif node.op == "call_function":
            drawn += uses_generator(node)
            draw = drawn if is_random(node) else None
            parts = (_function(node.target), draw, _text(node.args, found), _text(node.kwargs, found))
            found[node] = hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
        else:
            found[node] = f"{node.name} {_content(functional.constants.get(node))}"
    return found


def _content(constant: torch.Tensor | None) -> str:
    """What tells apart constants of the program's code that have one name in two graphs."""
    return "" if constant is None or constant.numel() > LARGEST_CONSTANT else repr(constant.tolist())


def _function(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target)
    return f"{target.__module__}.{target.__name__} {getattr(target, 'key', '')}".rstrip()


def _text(value: Any, found: Mapping[fx.Node, str]) -> str:
    """An argument, spelled the same in every process. A device is one of its kind."""
    if isinstance(value, fx.Node):
        return f"<{found[value]}>"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item, found) for item in value)}]"
    if isinstance(value, dict):
        return f"[{', '.join(f'{name}={_text(value[name], found)}' for name in sorted(value))}]"
    return value.type if isinstance(value, torch.device) else repr(key(value))
