"""Tests of minidynamo/memory/storages.py."""

from __future__ import annotations

import torch

from minidynamo import compat
from minidynamo.fake import mode
from minidynamo.memory.storages import StorageCounter, storage_bytes, strided_in


def test_storages_of_nested_values():
    with compat.FakeTensorMode():
        x, y = torch.empty(4, 6), torch.empty(3, dtype=torch.int64)
    sparse, real = x.to_sparse(), torch.ones(2)
    assert [*strided_in([x, (y, [x.t()], 3, None), real, sparse])][:2] == [x, y]
    assert list(map(storage_bytes, (x, y, x.t()))) == [96, 24, 96]


def test_the_bytes_of_a_part_are_those_of_the_whole():
    assert storage_bytes(torch.ones(4, 6)[1]) == 96


MATRIX = 64 * 64 * 4


def counted(program):
    """Returns the count after a program of one argument, which exists before the count begins."""
    counting = StorageCounter()
    with mode.FakeTensorMode():
        x = torch.empty(64, 64)
        counting.record([x], counts=False)
        with counting:
            made = program(x)
    return counting, made


def test_the_most_at_one_time_and_what_is_left():
    counting, made = counted(lambda x: (x + 1).sin().sum(0))
    assert (counting.peak, counting.level) == (2 * MATRIX, 64 * 4)
    del made
    assert counting.level == 0


def test_views_are_what_they_are_views_of():
    counting, _made = counted(lambda x: (x.t()[:3], (x + 1).t()))
    assert (counting.peak, counting.level) == (MATRIX, MATRIX)


def test_what_a_kernel_takes_inside_is_gone_behind_it():
    counting, _made = counted(lambda x: x * x.bool())
    assert (counting.peak, counting.level) == (MATRIX // 4 + 2 * MATRIX, MATRIX)
