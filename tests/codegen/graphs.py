"""ATen graphs for tests of the code generator, and the comparison with eager.

Contains no tests.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from minidynamo.codegen.compile_graph import CompiledGraph, compile_graph
from minidynamo.codegen.ir.loops import Kernel, LoopProgram
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.scheduling.schedule import Step, schedule
from minidynamo.compat import FakeTensorMode, python_dispatcher
from minidynamo.errors import UserLocation


def trace(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """Returns the ATen graph of `function`, with fake tensors in `meta["val"]`."""
    return make_fx(function, tracing_mode="fake")(*args)


def trace_symbolic(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """Returns the ATen graph of `function` for every size of its tensors, and for every int and float among `args`.

    As in the graph builder, Python dispatches the operations: otherwise torch 2.11 specializes the sizes in `matmul`.
    """
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    with mode, python_dispatcher():
        return make_fx(function)(*(_symbolic(arg, f"a{k}", mode, environment) for k, arg in enumerate(args)))


def _symbolic(arg: Any, name: str, mode: Any, environment: ShapeEnv) -> Any:
    source = ConstantSource(name)
    if isinstance(arg, torch.Tensor):
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * arg.dim())
        return mode.from_tensor(arg, source=source, symbolic_context=context)
    symbol = environment.create_unspecified_symbol(arg, source, DimDynamic.DYNAMIC)
    make = environment.create_symfloatnode if isinstance(arg, float) else environment.create_symintnode
    return make(symbol, hint=arg, source=source)


STEP = """def step(x, y):
    z = torch.relu(x + y) * 2
    return torch.softmax(z, -1) @ y, \\
        z.sum(0)
"""
LINES = {"add": 2, "relu": 2, "mul": 2, "_softmax": 3, "mm": 3, "sum": 4}
"""Operation -> line of STEP."""


def located() -> fx.GraphModule:
    """Returns the graph of STEP, whose nodes know the user's lines."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(STEP, namespace)
    linecache.cache["/home/somebody/train.py"] = (len(STEP), None, STEP.splitlines(keepends=True), "train.py")
    gm = trace(namespace["step"], torch.ones(8, 8), torch.ones(8, 8))
    for node in gm.graph.nodes:
        if node.op == "call_function":
            line = LINES[node.target.overloadpacket.__name__]
            node.meta["user_location"] = UserLocation("/home/somebody/train.py", line, "step")
    return gm


def located_kernels() -> list[Kernel]:
    """Returns the kernels of STEP."""
    steps = schedule(lower_graph(located()), join=True, verify=True)[1]
    return [step for step in steps if isinstance(step, Kernel)]


def lower(function: Callable[..., Any], *args: Any, target: str = "cpp") -> LoopProgram:
    """Returns the verified loop program of `function`, with one loop nest per operation."""
    program = lower_graph(trace(function, *args), target=target)
    verify_program(program)
    return program


def scheduled(function: Callable[..., Any], *args: Any, join: bool = True, target: str = "cpp") -> list[Step]:
    """Returns kernels and extern calls of `function`, verified."""
    return schedule(lower(function, *args, target=target), join=join, verify=True)[1]


def kernels(function: Callable[..., Any], *args: Any) -> list[Kernel]:
    """Returns the kernels of `function`."""
    return [step for step in scheduled(function, *args) if isinstance(step, Kernel)]


def flat(value: Any) -> list[Any]:
    """Returns the outputs of a function as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def check(function: Callable[..., Any], *args: torch.Tensor, target: str = "cpp", exact: bool = False) -> CompiledGraph:
    """Compiles for `target`, runs, and compares values, dtypes and strides with eager."""
    compiled = compile_graph(trace(function, *args), target=target)
    expected = flat(function(*args))
    boxed = list(args)
    results = compiled.call(boxed)
    assert boxed == []
    compare(results, expected, exact=exact)
    return compiled


def compare(results: Sequence[Any], expected: Sequence[Any], *, exact: bool = False) -> None:
    """Checks that values, dtypes, sizes and strides of two lists of tensors are the same.

    Unless `exact`, float32 may differ by the order of a sum and two units in the last place of a function.
    """
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.stride() == wanted.stride()
        rtol, atol = (3e-5, 1e-5) if wanted.dtype == torch.float32 else (None, None)
        rtol, atol = (0, 0) if exact else (rtol, atol)
        torch.testing.assert_close(result, wanted, equal_nan=True, rtol=rtol, atol=atol)
