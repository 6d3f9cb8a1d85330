"""ATen graphs for tests of the code generator, and the comparison of what they compute with eager.

It is not a test itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from minidynamo.codegen.compile_graph import CompiledGraph, compile_graph
from minidynamo.codegen.ir.loops import Kernel, LoopProgram
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.scheduling.schedule import Step, schedule


def trace(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """The ATen graph of `function`, with fake tensors in `meta["val"]`."""
    return make_fx(function, tracing_mode="fake")(*args)


def lower(function: Callable[..., Any], *args: Any) -> LoopProgram:
    """The verified loop program of `function`, one loop nest per operation."""
    program = lower_graph(trace(function, *args))
    verify_program(program)
    return program


def scheduled(function: Callable[..., Any], *args: Any, join: bool = True) -> list[Step]:
    """Kernels and extern calls of `function`, verified."""
    return schedule(lower(function, *args), join=join, verify=True)[1]


def kernels(function: Callable[..., Any], *args: Any) -> list[Kernel]:
    """The kernels of `function`."""
    return [step for step in scheduled(function, *args) if isinstance(step, Kernel)]


def flat(value: Any) -> list[Any]:
    """The outputs of a function as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def check(
    function: Callable[..., Any],
    *args: torch.Tensor,
    target: str = "cpp",
    exact: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
) -> CompiledGraph:
    """Compile for `target`, run, compare values, dtypes and strides with eager."""
    compiled = compile_graph(trace(function, *args), args, target=target)
    expected = flat(function(*args))
    boxed = list(args)
    results = compiled.call(boxed)
    assert boxed == []
    assert len(results) == len(expected)
    compare(results, expected, exact=exact, rtol=rtol, atol=atol)
    return compiled


def compare(results: Sequence[Any], expected: Sequence[Any], *, exact: bool = False, **tolerance: Any) -> None:
    """Values, dtypes, sizes and strides of two lists of tensors are the same."""
    if exact:
        tolerance = {"rtol": 0, "atol": 0}
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result, wanted, equal_nan=True, **tolerance)
