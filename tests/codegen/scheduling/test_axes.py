"""Loop order: innermost in memory order, joined where memory is contiguous, split where indices divide."""

import torch

import minidynamo
from minidynamo.codegen.ir.index import Var, as_index
from minidynamo.codegen.scheduling.axes import vector_of
from tests.codegen.graphs import kernels


def extents(function, *args):
    (kernel,) = kernels(function, *args)
    columns = next((loop.axes for loop in kernel.loops if loop.axes), ())
    return [v.extent for v in kernel.rows], [v.extent for v in columns], kernel.vector


def test_contiguous_axes_join():
    assert extents(lambda x: x + 1, torch.ones(2, 3, 4))[0] == [24]
    assert extents(lambda x, b: x + b, torch.ones(2, 3, 4), torch.ones(4))[0] == [6, 4]
    assert extents(lambda x: x[:, 1:] + 1, torch.ones(2, 3, 4))[0] == [2, 8]


def test_loops_follow_the_memory_of_the_result():
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert extents(lambda x: x * 2, x)[0] == [120]
    rows, _, vector = extents(lambda x, b: x * b, x, torch.ones(3, 1, 1))
    assert rows == [40, 3] and vector.extent == 3


def test_rows_and_columns_join_apart():
    rows, columns, vector = extents(lambda x: x.sum((2, 3)), torch.ones(2, 3, 4, 5))
    assert (rows, columns, vector.extent) == ([6], [20], 20)


def test_column_reduction_runs_along_rows():
    rows, columns, vector = extents(lambda x: x.sum(0), torch.ones(7, 5))
    assert (rows, columns, vector) == ([5], [7], Var("y0", 5))


def test_reduction_over_the_middle():
    rows, columns, vector = extents(lambda x: x.sum(1), torch.ones(2, 3, 4))
    assert (rows, columns, vector.extent) == ([2, 4], [3], 4)


def test_vector_of_counts_wide_accesses_only():
    y, x = Var("y", 8), Var("x", 4)
    wide, narrow = as_index(x) * 8 + as_index(y), as_index(x)
    assert vector_of([y], [x], [wide, narrow, narrow]) == y
    assert vector_of([y], [x], []) == x
    assert vector_of([y], [], []) == y
    assert vector_of([], [], []) is None


def merged_heads(x, y):
    return x.permute(0, 2, 1, 3).reshape(2, 3, -1) + y


def blocks(numbers, scales):
    return (numbers * scales).reshape(8, 64).float() * 2


def test_axes_that_indices_divide_are_split():
    assert extents(merged_heads, torch.ones(2, 4, 3, 16), torch.ones(2, 3, 64))[0] == [2, 3, 4, 16]
    assert extents(blocks, torch.ones(16, 32, dtype=torch.half), torch.ones(16, 1, dtype=torch.half))[0] == [16, 32]
    assert extents(merged_heads, torch.ones(2, 4, 3, 8), torch.ones(2, 3, 32))[0] == [2, 3, 32]  # too short a loop


def test_split_axes_compute_the_same():
    for function, args in (
        (merged_heads, (torch.randn(2, 4, 3, 16), torch.randn(2, 3, 64))),
        (blocks, (torch.randn(16, 32).half(), torch.randn(16, 1).half())),
        (lambda x: x.reshape(6, 96).t().reshape(32, 18) * 3, (torch.randn(4, 144),)),
        (lambda x: torch.cat([x.reshape(4, 64), x.reshape(4, 64) + 1], 1).relu(), (torch.randn(8, 32),)),
    ):
        assert torch.equal(minidynamo.compile(function)(*args), function(*args))
