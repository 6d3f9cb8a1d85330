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
from minidynamo import compat
F = torch.nn.functional
def loaded():
    return "torch._dynamo" in sys.modules
"""


def in_a_new_process(program, before=""):
    environment = {**os.environ, "MINIDYNAMO_GRAPH_CACHE": "0"}
    program = before + START + program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
from minidynamo.compat import standalone
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
from minidynamo.compat import standalone
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


GRAPHS = """
from examples.models import ARCHITECTURES
own_make_fx = compat.make_fx
def make_fx(*args, **kwargs):
    trace = own_make_fx(*args, **kwargs)
    def traced(*inputs):
        graph = trace(*inputs)
        print(compat.readable_text(graph))
        return graph
    return traced
compat.make_fx = make_fx

def show(name, f, *args, **options):
    print(name)
    torch.manual_seed(1)
    result = minidynamo.compile(f, backend="aot_eager", **options)(*args)
    leaves = torch.utils._pytree.tree_leaves(vars(result) if hasattr(result, "__dict__") else result)
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if scalars := [r.abs().sum() for r in results if r.requires_grad]:
        sum(scalars).backward()
    grads = [x.grad for x in (args if not isinstance(f, torch.nn.Module) else f.parameters())]
    print([x if x is None else x.tolist() for x in results + grads])

def show_models(names):
    for name in names:
        torch.manual_seed(0)
        show(name, ARCHITECTURES[name].make().train(), *ARCHITECTURES[name].inputs())
"""
OPERATORS = """
def square(): return (torch.arange(36.0).view(6, 6).sin() + torch.eye(6) * 3).requires_grad_()
for f in [
    lambda x: torch.logsumexp(x, 0), lambda x: F.softplus(x) + F.silu(x) + F.hardswish(x) + F.mish(x) + F.elu(x),
    lambda x: F.huber_loss(x, x.T) + F.kl_div(x.log_softmax(1), x.softmax(0)) + F.nll_loss(x, x.argmax(1)),
    lambda x: torch.linalg.inv(x) @ torch.linalg.det(x).expand(6, 1), lambda x: torch.linalg.norm(x, dim=0),
    lambda x: x.roll(1, 0).rot90().tril() + x.triu(1), lambda x: torch.stack(x.chunk(3)).unbind(1)[0].cumprod(1),
    lambda x: F.pad(x, (1, 2), value=1.5).unfold(1, 3, 2).amax(2), lambda x: x[x.detach().argsort(1)[0], ::2] ** 2,
    lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), lambda x: F.max_pool2d(x[None], 2),
    lambda x: F.group_norm(x[None], 3), lambda x: F.rrelu(x, training=True) + torch.rand_like(x) + F.dropout(x, 0.3),
    lambda x: x.scatter_add(0, torch.zeros(6, 6, dtype=torch.long), x).index_select(1, torch.tensor([3, 1])),
    lambda x: torch.einsum("ij,kj->ik", x, x).masked_fill(x > 0, 2).lerp(x, 0.3),
    lambda x: x.var(0).addcmul(x[0], x[1]), lambda x: (x.to(torch.bfloat16) * 2 + 1).float(),
    lambda x: torch.cdist(x, x.T) + torch.cov(x), lambda x: torch.nanmean(x),
    lambda x: torch.complex(x, x).abs(),
    lambda x: torch.fft.rfft(x).real.sum(),
]:
    show("operator", f, square())
show_models(["conv net", "pre-norm transformer", "LSTM cell"])
assert loaded() == PRELOADED

show("gradient", lambda x: torch.func.grad(lambda y: y.sin().sum())(x), square())
f = minidynamo.compile(lambda x: F.softmax(x.repeat(2, 1), 0) * x.shape[0], backend="aot_eager")
for n in (3, 4, 5):
    show("sizes", f, torch.arange(2.0 * n).view(n, 2).requires_grad_())
show("number", lambda x: x.sum() * x.mean().item(), torch.ones(3, requires_grad=True), fullgraph=True)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(OPERATORS, id="operators"),
        pytest.param("show_models(ARCHITECTURES)", id="models", marks=pytest.mark.slow),
    ],
)
def test_graphs_are_those_of_torchs_own_functions(program):
    alone, after = (
        in_a_new_process(GRAPHS + program.replace("PRELOADED", str(bool(imports))), imports)
        for imports in ("", "import torch._dynamo")
    )
    assert alone.count("torch.ops.aten") > 5 and alone == after


def test_a_mode_of_dispatch_sees_operations():
    seen = []

    class Names(compat.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Names():
        torch.ones(2).add(1)
    assert seen == ["ones.default", "add.Tensor"]
