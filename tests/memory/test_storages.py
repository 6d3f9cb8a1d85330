"""Tests of minidynamo/memory/storages.py."""

from __future__ import annotations

import torch

from minidynamo import compat
from minidynamo.memory.storages import storage_bytes, strided_in


def test_storages_of_nested_values():
    with compat.FakeTensorMode():
        x, y = torch.empty(4, 6), torch.empty(3, dtype=torch.int64)
    sparse, real = x.to_sparse(), torch.ones(2)
    assert [*strided_in([x, (y, [x.t()], 3, None), real, sparse])][:2] == [x, y]
    assert list(map(storage_bytes, (x, y, x.t()))) == [96, 24, 96]


def test_the_bytes_of_a_part_are_those_of_the_whole():
    assert storage_bytes(torch.ones(4, 6)[1]) == 96
