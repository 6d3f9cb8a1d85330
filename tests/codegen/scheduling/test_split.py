"""Long reductions to few results are split in two, others are not."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Loops
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.scheduling.split import split_reductions
from tests.codegen.graphs import check, lower


def shapes(function, *args):
    program = split_reductions(lower(function, *args))
    verify_program(program)
    return [(n.out.shape, tuple(v.extent for v in n.reduced)) for n in program.nodes if isinstance(n, Loops)]


def test_full_sum():
    assert shapes(lambda x: x.sum(), torch.ones(512, 512)) == [((64,), (4096,)), ((), (64,))]


def test_column_sum_of_few_columns():
    assert shapes(lambda x: x.sum(0), torch.ones(8192, 10)) == [((64, 10), (128,)), ((10,), (64,))]


def test_short_or_wide_sums_stay_whole():
    assert len(shapes(lambda x: x.sum(), torch.ones(100, 100))) == 1
    assert len(shapes(lambda x: x.sum(0), torch.ones(1024, 256))) == 1
    assert len(shapes(lambda x: x.argmax(), torch.ones(512, 512))) == 1


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_uneven_lengths_are_masked_with_the_identity(dtype):
    # A length without a suitable divisor.
    x = (torch.randn(70001, generator=torch.Generator().manual_seed(0)).abs() + 1).to(dtype)
    check(lambda x: (x.sum(), x.amin(), (-x).amax(), (x > 0).all(), (x > 100).any()), x)
    check(lambda x: (x * 0 + 1).prod(), x)
