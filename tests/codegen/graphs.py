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


def check(function: Callable[..., Any], *args: torch.Tensor, target: str = "cpp", exact: bool = False) -> CompiledGraph:
    """Compile for `target`, run, compare values, dtypes and strides with eager."""
    compiled = compile_graph(trace(function, *args), args, target=target)
    expected = flat(function(*args))
    boxed = list(args)
    results = compiled.call(boxed)
    assert boxed == []
    compare(results, expected, exact=exact)
    return compiled


def compare(results: Sequence[Any], expected: Sequence[Any], *, exact: bool = False) -> None:
    """Values, dtypes, sizes and strides of two lists of tensors are the same.

    Unless `exact`, float32 may differ by the order of a sum and two units in the last place of a function.
    """
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.stride() == wanted.stride()
        rtol, atol = (3e-5, 1e-5) if wanted.dtype == torch.float32 else (None, None)
        rtol, atol = (0, 0) if exact else (rtol, atol)
        torch.testing.assert_close(result, wanted, equal_nan=True, rtol=rtol, atol=atol)
