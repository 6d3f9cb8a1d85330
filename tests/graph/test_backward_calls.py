"""The functions that captured backwards call, run eagerly."""

from __future__ import annotations

import pytest
import torch

from minidynamo.graph import backward_calls as calls


def test_a_missing_gradient_adds_nothing():
    a = torch.ones(2)
    assert calls.add(None, a) is a and calls.add(a, None) is a and calls.add_in_place(None, a) is a
    assert calls.add_in_place(a, torch.ones(2)) is a and a.tolist() == [2, 2]


@pytest.mark.parametrize("is_owned", [True, False])
def test_a_leaf_takes_only_memory_that_nothing_else_has(is_owned):
    leaf, gradient = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3)
    with torch.no_grad():
        calls.add_to_leaf(leaf, gradient, is_owned)
    assert (leaf.grad.data_ptr() == gradient.data_ptr()) == is_owned and leaf.grad.tolist() == gradient.tolist()


def test_a_gradient_gets_the_strides_of_the_leaf():
    leaf = torch.zeros(2, 3, requires_grad=True)
    with torch.no_grad():
        calls.add_to_leaf(leaf, torch.arange(6.0).view(3, 2).t(), True)
    assert leaf.grad.stride() == (3, 1) and leaf.grad.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_hooks_of_nodes_may_return_one_tensor_but_not_another_number():
    one = [torch.ones(2)]
    assert calls.call_node_hook(lambda gradients: gradients[0] * 2, one)[0].tolist() == [2, 2]
    assert calls.call_node_hook(lambda gradients: None, one) is one
    with pytest.raises(RuntimeError, match=r"incorrect number of values \(got 2, but expected 1\)"):
        calls.call_node_hook(lambda gradients: (*gradients, None), one)


def test_a_hook_after_accumulation_returns_nothing():
    with pytest.raises(RuntimeError, match="should return None"):
        calls.call_leaf_hook(lambda leaf: leaf, torch.ones(2))


def test_attributes_that_a_backward_sets_are_seen_by_its_context():
    context = type("Context", (), {})()
    saved = calls.SavedContext(calls.ContextState(context), [torch.ones(1)], (True,))
    saved.seen = 3
    assert context.seen == saved.seen == 3 and len(saved.saved_tensors) == 1
