"""Tests of minidynamo/graph/saved_tensor_hooks.py."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks

from minidynamo import compat
from minidynamo.errors import ArgumentError
from minidynamo.graph import saved_tensor_hooks
from minidynamo.graph.boxed import mark_boxed
from minidynamo.graph.saved_tensor_hooks import (
    Hooks,
    as_graph,
    hooks_in_force,
    inlineable_hook,
    inlining,
    without_hooks,
)


def plain(x):
    return x


def graph():
    return fx.symbolic_trace(lambda x: x + 0)


@inlineable_hook
def marked(x):
    return x


def test_a_pair_is_put_into_graphs_if_both_hooks_can_be():
    first, second = graph(), graph()
    assert hooks_in_force() is None
    for pair in ((first, second), (marked, first), (second, marked)):
        with saved_tensors_hooks(*pair):
            assert hooks_in_force() == pair
    for pair in ((plain, first), (marked, plain), (plain, plain)):
        with saved_tensors_hooks(*pair):
            assert hooks_in_force() is None
    with saved_tensors_hooks(first, second), saved_tensors_hooks(plain, plain):
        assert hooks_in_force() is None  # the innermost pair counts


def test_only_functions_can_be_marked():
    assert marked(3) == 3
    with pytest.raises(ArgumentError, match="MD108 inlineable_hook got int"):
        inlineable_hook(3)


def test_a_marked_function_is_a_graph_of_one_call_in_a_key():
    own = graph()
    assert as_graph(own) is own
    (call,) = as_graph(marked).graph.find_nodes(op="call_function", target=marked)
    assert "user_cache_hash" not in call.meta
    hashed = inlineable_hook(user_cache_hash="A")(lambda x: x)
    (call,) = as_graph(hashed).graph.find_nodes(op="call_function", target=hashed)
    assert call.meta["user_cache_hash"] == "A"


def test_what_is_to_be_inlined_is_known_inside_only():
    first, second = graph(), graph()
    with inlining((first, second)):
        assert saved_tensor_hooks.to_inline.get() == Hooks(first, second)
        with inlining(None):
            assert saved_tensor_hooks.to_inline.get() is None
    assert saved_tensor_hooks.to_inline.get() is None


def test_hooks_are_back_behind_a_call_without_them_also_when_it_fails():
    def call(args):
        assert compat.top_saved_tensor_hooks(False) is None
        return args[0] / args[1]

    pair, run = (graph(), graph()), without_hooks(mark_boxed(call))
    with saved_tensors_hooks(plain, plain), saved_tensors_hooks(*pair):
        assert run([6, 3]) == 2
        with pytest.raises(ZeroDivisionError):
            run([6, 0])
        assert compat.top_saved_tensor_hooks(False) == pair
        torch.ones(2, requires_grad=True).sin()
    assert compat.top_saved_tensor_hooks(False) is None
