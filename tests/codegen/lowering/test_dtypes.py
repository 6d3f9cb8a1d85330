"""Results with dtypes that fake tensors may get wrong."""

import operator

import torch

from minidynamo.codegen.ir.loops import Extern, Loops
from minidynamo.codegen.lowering.dtypes import is_uncertain
from tests.codegen.graphs import check, lower, trace


def test_no_kernel_reads_what_follows_from_an_uncertain_dtype():
    def function(x, y):
        loss = torch.ops.aten.huber_loss(x, y, 0).relu()  # float32, where torch's fake tensor has float64
        return loss.to(torch.int32).abs(), loss.to(torch.float64, copy=True).abs()

    program = lower(function, torch.ones(3), torch.ones(3, dtype=torch.float64))
    kinds = [(type(n), n.layout is not None) if isinstance(n, Extern) else type(n) for n in program.nodes]
    assert kinds == [(Extern, False)] * 2 + [(Extern, True), Loops] * 2


def test_uncertain_results():
    def function(x, w):
        y, mean, _ = torch.native_layer_norm(x, (4,), w, None, 1e-5)
        return y.sin().cos(), mean.sin(), mean.sin() > 0, torch.softmax(mean, -1, torch.float64), x.exp()

    found = set()
    for node in trace(function, torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(4)).graph.nodes:
        if is_uncertain(node, found):
            found.add(node)
    names = sorted(n.target.__name__ if n.target is operator.getitem else str(n.target) for n in found)
    assert names == ["aten.native_layer_norm.default", "aten.sin.default", "aten.sin.default", *["getitem"] * 2]


def test_what_follows_is_computed_in_eagers_dtype():
    def function(x, y):
        loss = torch.nn.functional.huber_loss(x, y, reduction="none")
        return loss.relu().square(), loss.clamp(-3, 3).mul(2)

    check(function, torch.randn(32, 1), torch.randn(32, 1, dtype=torch.float64))
