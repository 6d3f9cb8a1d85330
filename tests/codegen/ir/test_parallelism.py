"""The number of chunks of a fold: by the machine, by the number of elements, and by their layout."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Loops
from minidynamo.codegen.ir.parallelism import PARALLELISM, chunks_wanted
from tests.codegen.graphs import lower


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
