"""Tests of minidynamo/codegen/ir/loops.py: sizes, ranges and argument order of buffers and kernels, and the number of
chunks of a fold."""

from __future__ import annotations

import pytest
import torch

from minidynamo.codegen.ir.index import Var
from minidynamo.codegen.ir.loops import (
    PARALLELISM,
    Buffer,
    Extern,
    GetItem,
    Kernel,
    Loop,
    Loops,
    Origin,
    chunks_wanted,
    comments,
    merge,
)
from minidynamo.errors import UserLocation
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
    view = torch.ops.aten.view.default
    assert Extern("t", view, (), aliases=("x",)).is_view
    assert not Extern("t", len, (), aliases=("x",)).is_view  # `len` may compute anything
    assert not Extern("t", view, (), aliases=("x",), mutates=("x",)).is_view


def test_origins_are_merged_in_graph_order_and_change_nothing():
    where = UserLocation("/a/b/train.py", 3, "step")
    a, b, c = Origin(4, "add", where), Origin(7, "mul", where), Origin(9, "neg")
    assert merge((b, c), (a, b)) == (a, b, c)
    assert comments((a, b, c)) == ("train.py:3 in step",)
    assert GetItem("t", "x", 0) == GetItem("t", "x", 0, origins=(a,))
    assert hash(GetItem("t", "x", 0)) == hash(GetItem("t", "x", 0, origins=(a,)))


def test_every_part_of_a_program_has_an_origin():
    program = lower(lambda x: (torch.topk(x.sin().softmax(-1), 2)[0] + 1).sum(), torch.ones(300, 300))
    others = [node for node in program.nodes if not isinstance(node, Loops)]
    assert [node.origins[0].op for node in others] == ["topk", "getitem", "getitem"]
    assert all(len(node.origins) == 1 for node in program.nodes)
    for kernel in kernels(lambda x: (x.sin().softmax(-1) * x.mean(0)).sum(), torch.ones(300, 300)):
        assert all(s.origins for s in kernel.statements())
        assert kernel.origins


def wanted(function, x, target):
    program = lower(function, x, target=target)
    node = next(n for n in program.nodes if isinstance(n, Loops) and n.combine is not None)
    return chunks_wanted(node, program.buffers, target)


@pytest.mark.parametrize("target", PARALLELISM)
def test_short_folds_stay_whole(target):
    assert wanted(lambda x: x.sum(), torch.ones(100, 100), target) == 1
    assert wanted(lambda x: x.sum(0), torch.ones(200, 8192), target) == 1
    assert wanted(lambda x: x.argmax(1), torch.ones(9, 100), target) == 1


def test_a_cpu_gets_a_fixed_number_of_chunks():
    assert [wanted(lambda x: x.sum(0), torch.ones(1 << 18, n), "cpp") for n in (1, 10, 63, 64)] == [64, 64, 64, 1]


def test_a_gpu_gets_about_as_many_programs_whatever_the_number_of_results():
    ones = torch.ones(4096, 4096)
    assert wanted(lambda x: x.sum(), ones, "triton") == 1024
    assert wanted(lambda x: x.sum(0), ones, "triton") == 16  # 64 programs have 64 columns each
    assert wanted(lambda x: x.sum(1), ones, "triton") == 1  # a program for each row is enough


def test_how_a_fold_lies_in_memory_counts_not_the_order_of_its_axes():
    tall = torch.ones(4096, 128)
    assert wanted(lambda x: x.sum(0), tall, "triton") == wanted(lambda x: x.t().sum(1), tall, "triton") == 128
    assert wanted(lambda x: x.sum(1), torch.ones(128, 4096), "triton") == 2


def test_without_kernels_nothing_is_cut():
    program = lower(lambda x: x.sum(), torch.ones(1 << 20), target="triton")
    node = next(n for n in program.nodes if isinstance(n, Loops))
    assert chunks_wanted(node, program.buffers, "aten") == 1
