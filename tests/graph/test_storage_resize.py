"""Tests of minidynamo/graph/storage_resize.py: the operators for resizable memory, and writes that must not advance the
version counter."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from minidynamo.graph.storage_resize import copy_unseen, lower_version, resize_storage


def nbytes(tensor):
    return tensor.untyped_storage().nbytes()


def test_it_resizes_the_whole_memory_and_nothing_else():
    base = torch.ones(8)
    view = base[2:4]
    resize_storage(view, 0, False)
    assert nbytes(base) == 0 and base.shape == (8,) and view.storage_offset() == 2
    resize_storage(base, 32, True)
    assert nbytes(view) == 32


@pytest.mark.parametrize("op", [resize_storage, copy_unseen])
def test_it_is_declared_what_changes(op):
    (tensor, *_) = op._schema.arguments
    assert op._schema.is_mutable and tensor.alias_info.is_write


def test_a_copy_is_expanded_converted_and_not_counted():
    leaf = torch.ones(4, requires_grad=True)
    y = leaf * leaf
    copy_unseen(leaf, torch.tensor([2], dtype=torch.int64))
    y.sum().backward()
    assert torch.equal(leaf, torch.full((4,), 2.0)) and torch.equal(leaf.grad, torch.full((4,), 4.0))
    for fake in (False, True):
        with FakeTensorMode() if fake else contextlib.nullcontext(), pytest.raises(RuntimeError):
            copy_unseen(torch.ones(4), torch.ones(3))


def test_autograd_sees_nothing():
    leaf = torch.ones(4, requires_grad=True)
    resize_storage(leaf, 0, False)
    assert leaf._version == 0 and leaf.grad_fn is None


def test_without_data_sizes_stay():
    with FakeTensorMode():
        x = torch.ones(4)
        resize_storage(x, 0, False)
    assert nbytes(x) == 16


def test_all_views_count_less():
    base = torch.zeros(4)
    view = base[:2]
    base.add_(1)
    view.mul_(2)
    lower_version(view, 1)
    assert base._version == view._version == 1
