"""Tests of minidynamo/compat/autograd.py."""

from __future__ import annotations

import pytest
import torch

from minidynamo import compat
from tests.custom_functions import Doubled


def test_names_of_gradient_functions():
    x = torch.ones(2, requires_grad=True)
    assert compat.name_of(x.sin().grad_fn) == "SinBackward0"
    made = Doubled.apply(x)
    function = made.grad_fn
    assert compat.name_of(function) == function.name() == "DoubledBackward"
    del made
    assert compat.name_of(function) == "DoubledBackward"


def test_what_backward_runs_is_known_while_it_runs():
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    y = x * w
    z = y * 2
    accumulators = [function for function, _ in y.grad_fn.next_functions]
    assert [compat.leaf_of(function) for function in accumulators] == [x, w] and compat.leaf_of(y.grad_fn) is None
    found = []

    def look(gradient):
        found.append((compat.runs_for_all_leaves(), compat.retains_graph(), [*map(compat.will_run, accumulators)]))

    z.register_hook(look)
    z.sum().backward(inputs=[x], retain_graph=True)
    torch.autograd.grad(z.sum(), w, retain_graph=True)
    z.sum().backward()
    assert found == [(False, True, [True, False]), (False, True, [False, None]), (True, False, [True, True])]


def test_hooks_of_saved_tensors_are_seen():
    assert not compat.has_saved_tensor_hooks()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert compat.has_saved_tensor_hooks()


def test_without_hooks_of_saved_tensors_others_can_be_opened():
    seen, hooks = [], torch.autograd.graph.saved_tensors_hooks

    def outer(x):
        seen.append("outer")
        return x

    def inner(x):
        seen.append("inner")
        return x

    x = torch.ones(2, requires_grad=True)
    with hooks(outer, outer), hooks(inner, inner):
        with compat.no_saved_tensor_hooks():
            assert not compat.has_saved_tensor_hooks()
            x.sin()
            with hooks(outer, outer):
                x.sin()
        x.sin()
        assert seen == ["outer", "inner"]
    assert not compat.has_saved_tensor_hooks()


def test_hooks_that_see_the_gradient_of_a_leaf():
    x = torch.ones(2, requires_grad=True)
    assert not compat.has_tensor_hooks(x)
    x.register_post_accumulate_grad_hook(lambda leaf: None)
    assert compat.has_tensor_hooks(x)


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
