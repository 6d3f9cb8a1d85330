"""Tests of minidynamo/compat/transforms.py."""

from __future__ import annotations

import pytest
import torch

from minidynamo import compat


def test_a_value_of_many_is_taken_apart_and_put_together():
    levels = []

    def inner(x):
        assert compat.is_batched(x) and compat.are_transforms_active() and compat.running_transform() is not None
        level = compat.batch_level(x)
        levels.append(level)
        return compat.batched(compat.unbatched(x, level) * 2, level)

    batch = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(torch.func.vmap(inner)(batch), batch * 2)
    assert torch.equal(torch.func.vmap(inner, in_dims=1, out_dims=1)(batch), batch * 2)
    assert len(levels) == 2 and min(levels) > 0
    assert not compat.is_batched(batch) and compat.batch_level(batch) is None


@pytest.mark.filterwarnings("ignore:.*vmap")
def test_gradients_of_many_count_below_zero():
    x = torch.ones(2, requires_grad=True)
    levels = []
    y = x * 2
    y.register_hook(lambda gradient: levels.append(compat.batch_level(gradient)))
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert len(levels) == 1 and levels[0] is not None
