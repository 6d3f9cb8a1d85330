"""Measures generated kernels on a matrix that does not fit the cores' own caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import minidynamo
from benchmarks.measure import SYSTEMS, Limit, Result, interleaved, keep_memory_mapped

ROWS, COLUMNS = 4096, 1024
LIMITS = (Limit("torch.compile", 1.0),)
# The same for kernels that serve every size, each system's own; "static" is ours for one size.
DYNAMIC: dict[str, Callable[..., Any]] = {
    "eager": lambda target: target,
    "minidynamo": partial(minidynamo.compile, dynamic=True),
    "torch.compile": partial(torch.compile, dynamic=True),
    "static": partial(minidynamo.compile, dynamic=False),
}
DYNAMIC_LIMITS = (*LIMITS, Limit("static", 1.25))


def chain(x: Tensor, y: Tensor) -> Tensor:
    """Computes three transcendental functions in one pass."""
    return torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x)


def softmax(x: Tensor) -> Tensor:
    """Softmax over each row."""
    return torch.softmax(x, dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes layer norm over each row, with weight and bias."""
    return functional.layer_norm(x, (COLUMNS,), weight, bias)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Computes the operations between the two matrix products of a perceptron."""
    return functional.gelu(x + bias)


def _programs() -> Iterator[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
    x, y = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    row, other_row = torch.randn(COLUMNS), torch.randn(COLUMNS)
    yield "tanh(x) * sigmoid(y) + exp(-x * x)", chain, (x, y)
    yield "softmax(x)", softmax, (x,)
    yield "layer_norm(x)", layer_norm, (x, row, other_row)
    yield "gelu(x + bias)", gelu_bias, (x, row)


def measure(quick: bool) -> Iterator[Result]:
    """Measures the milliseconds per call on 4096x1024 float32."""
    keep_memory_mapped()
    for sizes, systems, limits in (("", SYSTEMS, LIMITS), (" of any size", DYNAMIC, DYNAMIC_LIMITS)):
        for name, function, arguments in _programs():
            torch.compiler.reset()  # remembers earlier compiles of a function
            functions = {system: partial(make(function), *arguments) for system, make in systems.items()}
            samples = interleaved(functions, rounds=5 if quick else 60, calls=2, scale=1e3)
            yield Result(f"{name}{sizes} on {ROWS}x{COLUMNS} float32", "ms", samples, limits)
