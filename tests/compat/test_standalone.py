"""Compiles in processes that have not imported `torch._dynamo`, and that import the package later."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from minidynamo import compat

START = """
import sys, torch, minidynamo
from minidynamo.compat import standalone
F = torch.nn.functional
def loaded():
    return "torch._dynamo" in sys.modules
"""


def in_a_new_process(program):
    environment = {**os.environ, "MINIDYNAMO_GRAPH_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


PROGRAMS = """
def check(f, *args):
    before = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    after = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    torch.manual_seed(1); expected = f(*before)
    torch.manual_seed(1); result = minidynamo.compile(f, backend="aot_eager", fullgraph=True)(*after)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    if result.requires_grad:
        result.sum().backward(), expected.sum().backward()
    torch.testing.assert_close([x.grad for x in after], [x.grad for x in before], rtol=0, atol=0)
    torch.testing.assert_close(after, before, rtol=0, atol=0)

x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
minidynamo.compile(lambda x: x * 2, backend="aot_eager")(x)
assert "torch.distributed.tensor" not in sys.modules  # a printed graph needs no DTensors
check(lambda x, w: torch.softmax(torch.sin(x @ w), 1).cumsum(0).std(), x, w)
check(lambda x: F.layer_norm(F.gelu(x), (6,)) + torch.tensor([1.0, 2.0] * 3)[torch.tensor([0, 1, 2, 3, 4, 5])], x)
check(lambda x: F.dropout(x, 0.5) + torch.where(x > 0, x, -x).flip(0).max(), x)
check(lambda x: F.batch_norm(F.conv2d(x, x), None, None, training=True), torch.randn(2, 2, 3, 3, requires_grad=True))
check(lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(1, 2, 4, 8, requires_grad=True))
check(lambda x: x.add_(1).t().mul_(2).t(), torch.randn(3, 4))
check(lambda x: torch.func.vmap(torch.cos)(x), torch.randn(3, 4))
check(lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3])), x)
assert not loaded()
"""
LATER = """
compiled = minidynamo.compile(lambda x: torch.sin(x) + x.T.sum(), backend="aot_eager", fullgraph=True)
x = torch.randn(3, 4)
assert compiled(x).equal(torch.sin(x) + x.T.sum()) and not loaded()
rules = list(standalone._unloaded_dynamo._changed)
assert rules and all(vars(rule)["__dynamo_disable"] is rule for rule in rules)

theirs = torch.compile(lambda x: torch.softmax(x, 0).cos() * 2, backend="aot_eager", fullgraph=True)
assert theirs(x).allclose(torch.softmax(x, 0).cos() * 2) and loaded()
assert not any(vars(rule).get("__dynamo_disable") is rule for rule in rules)
assert not any(isinstance(finder, standalone._UnloadedDynamo) for finder in sys.meta_path)
assert type(torch._dynamo.__spec__.loader).__module__ != standalone.__name__
y = torch.randn(5, 2)
assert compiled(y).equal(torch.sin(y) + y.T.sum())
"""
IN_THE_MIDDLE = """
from torch.fx.experimental.proxy_tensor import make_fx
load = standalone.load_fake_tensors
load()
def f(x):
    import torch._dynamo
    return torch.ones(2) + x
with standalone.StandaloneFakeTensorMode() as mode:
    graph = standalone.make_fx(f)(torch.empty(2))
assert loaded() and [node.op for node in graph.graph.nodes].count("call_function") == 2
assert torch._dynamo.is_compiling() is False
"""


@pytest.mark.parametrize("program", [PROGRAMS, LATER, IN_THE_MIDDLE], ids=["programs", "later", "in the middle"])
def test_compiles_without_torch_dynamo(program):
    in_a_new_process(program)


def test_a_mode_of_dispatch_sees_operations():
    seen = []

    class Names(compat.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Names():
        torch.ones(2).add(1)
    assert seen == ["ones.default", "add.Tensor"]
