"""Tests of minidynamo/codegen/lowering/dtypes.py: dtypes that fake tensors may get wrong, and numbers that may not fit
their dtype."""

from __future__ import annotations

import operator

import pytest
import torch

from minidynamo.codegen.ir.expr import Ref, Scalar
from minidynamo.codegen.ir.loops import Buffer, Extern, Loops, Name
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.dtypes import converted, is_uncertain, may_not_fit, run_time_dtype
from minidynamo.codegen.lowering.formula import NotLowered, V
from minidynamo.codegen.lowering.registry import Value
from minidynamo.codegen.runtime.host_functions import must_fit
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


CPU = torch.device("cpu")
NUMBER = V(Scalar("n"))


def builder(*shape: int) -> Builder:
    made = Builder()
    made.prefix = "made"
    made.results = (Buffer("made", shape, (1,) * len(shape), torch.float32, CPU),)
    return made


def test_known_numbers_and_those_in_tensors() -> None:
    wide = Value.whole(Buffer("w", (), (), torch.float64, CPU))
    assert (run_time_dtype(NUMBER), run_time_dtype(2.5)) == (torch.float64, None)
    assert may_not_fit(NUMBER, torch.float32) and may_not_fit(wide, torch.float32)
    assert not may_not_fit(NUMBER, torch.float64) and not may_not_fit(1e300, torch.float32)


def test_the_host_program_asks_about_what_may_not_fit() -> None:
    one = builder(3)
    assert converted(one, 2.5, torch.float32).dtype == torch.float32 and not one.prelude
    assert converted(one, NUMBER, torch.float64) == NUMBER and not one.prelude
    for _ in range(2):  # asked once
        assert converted(one, NUMBER, torch.float32).dtype == torch.float32
    [asked] = one.prelude
    assert asked.raises and asked.op is must_fit and asked.args == (Name("n"), torch.float32) and not one.nodes


@pytest.mark.parametrize("shape", [(), (1,), (0,)])
def test_one_element_is_left_to_torch(shape: tuple[int, ...]) -> None:
    with pytest.raises(NotLowered):
        converted(builder(*shape), NUMBER, torch.float32)
    with pytest.raises(NotLowered):
        converted(builder(3), V(Ref("x", torch.float64)), torch.float32)
