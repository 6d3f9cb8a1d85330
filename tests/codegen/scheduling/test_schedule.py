"""The stage list of scheduling: kernels get names, and all results are verified."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern, Kernel, Loops, Origin
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.scheduling.schedule import kernel_name, optimize, split_reductions
from tests.codegen.graphs import check, lower, scheduled


def shapes(function, *args, target="cpp"):
    program = split_reductions(lower(function, *args, target=target))
    verify_program(program)
    return [(n.out.shape, tuple(v.extent for v in n.reduced)) for n in program.nodes if isinstance(n, Loops)]


def test_full_sum():
    assert shapes(lambda x: x.sum(), torch.ones(512, 512)) == [((64,), (8, 512)), ((), (64,))]


def test_column_sum_of_few_columns():
    assert shapes(lambda x: x.sum(0), torch.ones(8192, 10)) == [((64, 10), (128,)), ((10,), (64,))]


def test_short_or_wide_sums_stay_whole():
    assert len(shapes(lambda x: x.sum(), torch.ones(100, 100))) == 1
    assert len(shapes(lambda x: x.sum(0), torch.ones(1024, 256))) == 1
    assert len(shapes(lambda x: x.argmax(), torch.ones(512, 512))) == 1


def test_a_gpu_wants_many_programs():
    # A thousand for a full sum; sixteen chunks of each block of columns; few enough to leave work for each chunk.
    assert shapes(lambda x: x.sum(), torch.ones(4096, 1024), target="triton")[0] == ((1024,), (4, 1024))
    assert shapes(lambda x: x.sum(0), torch.ones(2048, 4096), target="triton")[0] == ((16, 4096), (128,))
    assert shapes(lambda x: x.sum(1), torch.ones(4, 65536), target="triton")[0] == ((32, 4), (2048,))
    assert len(shapes(lambda x: x.sum(1), torch.ones(1024, 1024), target="triton")) == 1
    assert len(shapes(lambda x: x.sum(0), torch.ones(1024, 32768), target="triton")) == 1
    assert len(shapes(lambda x: x.sum(), torch.ones(300, 300), target="triton")) == 1


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_elements_and_their_sums_over_rows_are_one_pass(target):
    # The backward of a layer: the gradient of its input, and the sum of the gradient over the batch.
    kernels = scheduled(lambda x, g: ((made := g * x.cos()), made.sum(0)), *[torch.ones(65536, 16)] * 2, target=target)
    assert len(kernels) == 2
    assert {b.name for b in kernels[0].writes} == {"mul", "sum_1_partial"}


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin], ids=["argmax", "argmin"])
def test_the_position_of_an_extreme_value_is_found_in_chunks(function):
    x = torch.randn(600, 1000, generator=torch.Generator().manual_seed(0))
    assert shapes(function, x, target="triton")[0][0] != ()
    x[7, 5] = x[500, 3] = 9.0 if function is torch.argmax else -9.0
    check(function, x, target="triton", exact=True)
    x[300, 1] = float("nan")
    check(lambda x: (function(x), function(x, 1), function(x[:, :50], 0)), x, target="triton", exact=True)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_uneven_lengths_are_masked_with_the_identity(dtype):
    # A length without a suitable divisor.
    x = (torch.randn(70001, generator=torch.Generator().manual_seed(0)).abs() + 1).to(dtype)
    check(lambda x: (x.sum(), x.amin(), (-x).amax(), (x > 0).all(), (x > 100).any()), x)
    check(lambda x: (x * 0 + 1).prod(), x)


X = torch.ones(8, 8)


def test_kernels_are_named_after_what_they_compute():
    steps = scheduled(lambda x: (x.softmax(1) @ x).relu() * 2, X)
    assert [s.name if isinstance(s, Kernel) else s.out for s in steps] == ["softmax_0", "mm", "relu_mul_2"]


def test_long_names_are_cut_between_operations():
    origins = tuple(Origin(k, op) for k, op in enumerate(["convolution_backward", "native_group_norm", *"abcdefgha"]))
    assert kernel_name(origins) == "convolution_backward_native_group_norm_a_b_c_d_e_and_3_more"
    assert kernel_name(()) == "kernel"


def test_names_are_distinct():
    names = [s.name for s in scheduled(lambda x: [(x + k).flip(0) @ x for k in range(3)], X) if isinstance(s, Kernel)]
    assert len(set(names)) == len(names)


def test_values_for_others_are_stored():
    kernel, call = scheduled(lambda x: (x + 1).exp() @ x, X)
    assert isinstance(kernel, Kernel) and isinstance(call, Extern)
    assert [b.name for b in kernel.writes] == ["exp"]


def test_optimize_without_joining_only_removes_and_splits():
    program = lower(lambda x: ((x + 1).exp(), x * 2), X)
    program = dataclasses.replace(program, outputs=program.outputs[:1])
    assert len(optimize(program, join=False).nodes) == 2
    assert len(optimize(program, join=True).nodes) == 1
