"""Compiled functions and modules under torch's own tracers, transforms and copies, and vice versa.

In a folder that runs late: once torch.compile has run in a process, arguments of other functions die later.
"""

from __future__ import annotations

import copy
import functools
import io
import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import minidynamo

pytestmark = pytest.mark.filterwarnings("ignore")


@minidynamo.compile(backend="aot_eager")
def whole(x):
    return x.sin() * 2


@minidynamo.compile(backend="eager")
def broken(x):
    y = x.sin()
    minidynamo.graph_break()
    return y * 2


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def vector():
    return torch.arange(3.0)


TORCH = {
    "jit.trace": lambda fn: torch.jit.trace(fn, vector()),
    "make_fx": lambda fn: make_fx(fn)(vector()),
    "make_fx on fake tensors": lambda fn: make_fx(fn, tracing_mode="fake")(vector()),
    "symbolic_trace": torch.fx.symbolic_trace,
    "grad": lambda fn: torch.func.grad(lambda x: fn(x).sum()),
    "vmap": lambda fn: lambda x: torch.func.vmap(fn)(torch.stack([x, x + 1])),
    "jvp": lambda fn: lambda x: torch.func.jvp(fn, (x,), (x,))[1],
    "jacrev": torch.func.jacrev,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "export": lambda fn: torch.export.export(Around(fn), (vector(),)).module(),
}


@pytest.mark.parametrize("fn", [whole, broken], ids=["whole", "broken"])
@pytest.mark.parametrize("tool", TORCH.values(), ids=TORCH)
def test_functions(tool, fn):
    expected = tool(fn.py_func)(vector())
    for _ in range(2):  # the second time with compiled code
        torch.testing.assert_close(tool(fn)(vector()), expected)
        torch.testing.assert_close(fn(vector()), fn.py_func(vector()))


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def functional(module):
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    return lambda x: torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,)).sum())(parameters)


MODULES = {name: TORCH[name] for name in ("jit.trace", "make_fx", "symbolic_trace", "export", "deepcopy", "copy")} | {
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "save": saved_and_loaded,
    "functional_call": functional,
    "averaged": torch.optim.swa_utils.AveragedModel,
    "jit.script": torch.jit.script,
}


@pytest.mark.parametrize("tool", MODULES.values(), ids=MODULES)
def test_modules(tool):
    torch.manual_seed(0)
    plain = Layer()
    compiled = minidynamo.compile(copy.deepcopy(plain), backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(tool(compiled)(vector()), tool(plain)(vector()))
        torch.testing.assert_close(tool(Around(compiled))(vector()), tool(Around(plain))(vector()))
        torch.testing.assert_close(compiled(vector()), plain(vector()))


def test_torch_compile_leaves_compiled_functions_to_themselves():
    module = Layer()
    minidynamo.compile(module, backend="eager")

    @functools.wraps(whole)
    def wrapper(x):
        return whole(x) + 1

    for target in (whole, broken, module, lambda x: broken(x) + 1, wrapper, Around(module)):
        expected = target(vector())
        torch.testing.assert_close(torch.compile(target, backend="eager")(vector()), expected)
    before = whole.stats.calls
    torch.compile(lambda x: whole(x) + 1, backend="eager")(vector())
    assert whole.stats.calls == before + 1
    with pytest.raises(Exception, match="compiled by minidynamo"):
        torch.compile(lambda x: whole(x) - 1, backend="eager", fullgraph=True)(vector())
    assert torch.equal(minidynamo.compile(wrapper, backend="eager", fullgraph=True)(vector()), whole(vector()) + 1)


def test_what_torch_made_inside_compiled_functions():
    layer = Layer()
    traced, scripted = torch.jit.trace(layer, vector()), torch.jit.script(layer)
    graph = torch.fx.symbolic_trace(layer)
    exported = torch.export.export(layer, (vector(),)).module()
    compiled = torch.compile(Layer(), backend="eager")

    def program(x):
        return traced(x) + scripted(x) + graph(x) + exported(x) + compiled(x)

    for _ in range(2):
        torch.testing.assert_close(minidynamo.compile(program, backend="eager")(vector()), program(vector()))
    for module in (traced, scripted, graph, exported, compiled):
        expected = module(vector())
        torch.testing.assert_close(minidynamo.compile(module, backend="eager")(vector()), expected)


def test_functions_that_torch_compile_may_not_capture():
    def through(x):
        return torch.frac(x) + 1

    torch._dynamo.disallow_in_graph(torch.frac)
    try:
        compiled = minidynamo.compile(through, backend="eager")
        torch.testing.assert_close(compiled(vector()), through(vector()))
        assert "It is marked with disallow_in_graph." in compiled.breaks()
    finally:
        torch._dynamo.allow_in_graph(torch.frac)
