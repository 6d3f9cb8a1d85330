"""Owns names of values that do not depend on the graph: a name is derived from the operation and the names of its
arguments.

In all graphs that are traced from one program, in any process, equal values have equal names, wherever the values are
computed. Random numbers are distinguished by the number of earlier draws.
`autograd/runtime/derivatives.py` looks values up by name.
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
"""Maximum number of elements of a constant whose content is part of its name."""

Symbols = dict[Any, tuple[int, str, int]]
"""Symbol -> where a call finds its value: the input, "number", "size" or "stride", and the dimension."""


def symbols_of(flat: Iterable[Any]) -> Symbols:
    """Returns the symbols of the fake inputs."""
    symbols: Symbols = {}
    for i, value in enumerate(flat):
        for kind, dim, number in numbers_in(value):
            if isinstance(number, compat.SYMBOLIC_NUMBERS) and getattr(key(number), "is_symbol", False):
                symbols.setdefault(key(number), (i, kind, dim))
    return symbols


def expression_as_traced(number: Any) -> Any:
    """Returns a number, or the expression of a symbolic number as it was traced, without later simplifications."""
    return compat.expression_of(number) if isinstance(number, compat.SYMBOLIC_NUMBERS) else number


def numbers_in(value: Any) -> Iterable[tuple[str, int, Any]]:
    """Returns the numbers in an input, each with its kind and dimension, as in `Symbols`."""
    if not isinstance(value, torch.Tensor):
        return [("number", 0, value)]
    strides = value.stride() if value.layout is torch.strided else ()
    return [
        *(("size", dim, size) for dim, size in enumerate(value.shape)),
        *(("stride", dim, stride) for dim, stride in enumerate(strides)),
    ]


def symbol_values(symbols: Symbols, flat: Sequence[Any]) -> dict[Any, Any]:
    """Returns the values of the symbols for the inputs of one call."""
    values = {}
    for symbol, (i, kind, dim) in symbols.items():
        value = flat[i]
        values[symbol] = value if kind == "number" else value.shape[dim] if kind == "size" else value.stride(dim)
    return values


def value_keys(
    functional: FunctionalGraph, symbols: Symbols, expression: Callable[[Any], Any] = key
) -> dict[fx.Node, str]:
    """Maps each node of a functional graph to the name of its value. `expression` returns the name of a symbolic
    number."""
    inputs = {node: i for i, node in enumerate(functional.placeholders)}
    names = {symbol: type(symbol)(f"{kind}_{i}_{dim}") for symbol, (i, kind, dim) in symbols.items()}
    keys: dict[fx.Node, str] = {}
    draws = 0
    for node in functional.emitter.graph.nodes:
        if is_number(node) and not depends_on_data(node.meta["val"]):
            number = expression(node.meta["val"])
            keys[node] = f"number {number.xreplace(names) if hasattr(number, 'xreplace') else number}"
        elif node in inputs:
            keys[node] = f"input {inputs[node]}"
        elif node.op == "call_function":
            draws += uses_generator(node)
            number_of_draw = draws if is_random(node) else None
            parts = (_function(node.target), number_of_draw, _text(node.args, keys), _text(node.kwargs, keys))
            keys[node] = hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
        else:
            keys[node] = f"{node.name} {_content(functional.constants.get(node))}"
    return keys


def _content(constant: torch.Tensor | None) -> str:
    """Returns the text that distinguishes two constants of the program which have the same name in two graphs."""
    return "" if constant is None or constant.numel() > LARGEST_CONSTANT else repr(constant.tolist())


def _function(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target)
    return f"{target.__module__}.{target.__name__} {getattr(target, 'key', '')}".rstrip()


def _text(value: Any, keys: Mapping[fx.Node, str]) -> str:
    """Returns an argument as a text that is the same in every process. A device is represented by its type."""
    if isinstance(value, fx.Node):
        return f"<{keys[value]}>"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item, keys) for item in value)}]"
    if isinstance(value, dict):
        return f"[{', '.join(f'{name}={_text(value[name], keys)}' for name in sorted(value))}]"
    return value.type if isinstance(value, torch.device) else repr(key(value))
