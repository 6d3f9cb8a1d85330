"""Buffers and kernels: sizes, ranges, argument order."""

import torch

from minidynamo.codegen.ir.index import Var
from minidynamo.codegen.ir.loops import Buffer, Extern, Kernel, Loop
from tests.codegen.graphs import kernels, lower

CPU = torch.device("cpu")


def test_bytes_span_gaps_but_not_the_offset():
    assert Buffer("a", (2, 3), (3, 1), torch.float32, CPU).nbytes == 24
    assert Buffer("a", (2, 3), (8, 1), torch.float32, CPU).nbytes == 44
    assert Buffer("a", (2, 0), (1, 1), torch.float32, CPU).nbytes == 0
    assert Buffer("a", (2, 3), (0, 1), torch.float64, CPU).nbytes == 24
    assert Buffer("a", (), (), torch.bool, CPU).numel == 1


def test_ranges_are_the_axes_that_are_not_folded():
    node = lower(lambda x: x.sum(0), torch.ones(3, 4)).nodes[0]
    assert [v.extent for v in node.ranges] == [4]
    assert [v.extent for v in node.reduced] == [3]


def test_kernel_arguments_and_work():
    kernel = kernels(lambda x, y: (x + y).softmax(-1), torch.ones(3, 4), torch.ones(4))[0]
    assert [b.name for b in kernel.arguments] == ["x_1", "y_1", "_softmax"]
    assert kernel.work == 12
    empty = Kernel("k", (), (), (Var("y", 0),), (Loop((), ()),), None, CPU)
    assert empty.work == 0


def test_extern_that_writes_is_not_a_view():
    assert Extern("t", "op", (), aliases=("x",)).is_view
    assert not Extern("t", "op", (), aliases=("x",), mutates=("x",)).is_view
