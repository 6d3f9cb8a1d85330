"""Tests of minidynamo/autograd/graph/hooks.py: the hooks of a leaf."""

import torch

from minidynamo.autograd.graph import hooks
from minidynamo.autograd.graph.hooks import is_hooked, register


def leaf():
    x = torch.ones(2, requires_grad=True)
    return x, torch.autograd.graph.get_gradient_edge(x).node


def nothing(*_):
    pass


def test_every_kind_of_hook_is_found_until_it_is_removed():
    x, node = leaf()
    places = [x.register_hook, x.register_post_accumulate_grad_hook, node.register_prehook, node.register_hook]
    for how in places:
        assert not is_hooked(x, node)
        handle = how(nothing)
        assert is_hooked(x, node)
        handle.remove()
    assert not is_hooked(x, node)


def test_a_hook_of_a_node_that_nobody_holds_is_found():
    x, _ = leaf()
    y = x * 1
    y.grad_fn.next_functions[0][0].register_prehook(nothing)
    assert is_hooked(x, y.grad_fn.next_functions[0][0])


def test_asking_leaves_nothing_behind_that_runs():
    x, node = leaf()
    register(node.register_hook, nothing).remove()
    assert not is_hooked(x, node)
    x.sum().backward()
    x.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_leaf_is_asked_again_only_after_a_hook_of_the_user(monkeypatch):
    registered = []
    monkeypatch.setattr(hooks, "register", lambda how, hook: registered.append(how) or register(how, hook))
    (x, node), (other, _) = leaf(), leaf()
    other.register_hook(nothing)
    for asked in (2, 2, 2):
        assert not is_hooked(x, node) and len(registered) == asked
    node.register_hook(nothing)
    assert is_hooked(x, node) and len(registered) > 2
