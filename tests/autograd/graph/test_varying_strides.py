"""Tests of minidynamo/autograd/graph/varying_strides.py: strides of tensors with dynamic sizes."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from minidynamo.autograd.graph.numbers import keys
from minidynamo.autograd.graph.varying_strides import order_of, predict_values, view_strides, with_repeats
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.unbacked_symints import unbacked_symbol

aten = torch.ops.aten


def test_dimensions_repeat_or_lie_without_gaps():
    assert order_of(torch.empty(3, 4).t()) == (0, 1)
    assert with_repeats((1, 0), (3, 4), (0, 0)) == (0, 0)
    assert with_repeats((1, 0), (3, 4), (0, 1)) == (0, 1)
    assert with_repeats((2, 0, 1), (3, 4, 5), (1, 1, 0)) == (1, 3, 0)


def test_another_shape_is_a_view_where_dimensions_repeat_or_are_taken_apart():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(6, 4), static_shapes=False)
    n, k = x.shape
    with mode:
        row, repeated = x[0].expand(n, k), x.new_empty(2 * k).expand(2 * n, 2 * k)
    guards = len(mode.shape_env.guards)
    assert keys(view_strides(x, (n * k,))) == (1,)
    assert keys(view_strides(x, (1, n, 1, k))) == keys((1, k, 1, 1))
    assert keys(view_strides(repeated, (2, n, 2, k))) == keys((0, 0, k, 1))
    assert view_strides(row, (n * k,)) is None
    assert len(mode.shape_env.guards) == guards


def traced(mode, op, shown, given):
    """Returns a node that was traced with the value `shown` and now has the value `given`."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(op, (x, 2))
    with mode:
        x.meta["val"], made.meta["val"] = given, op(shown, 2)
    return made


def test_an_operation_is_asked_about_the_sizes_of_this_call():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(3, 4), static_shapes=False)
    with mode:
        repeated, turned = x.new_empty(()).expand(x.shape), x.new_empty(x.shape[::-1]).t()
    guards = len(mode.shape_env.guards)
    node = traced(mode, aten.mul.Tensor, x, repeated)
    assert predict_values(node) is node.meta["val"]
    other = predict_values(traced(mode, aten.mul.Tensor, x, turned))
    assert keys(other.shape) == keys(x.shape) and keys(other.stride()) == keys(turned.stride())
    assert len(mode.shape_env.guards) == guards


def test_nothing_is_known_of_sizes_that_hang_on_data():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        x = torch.empty(unbacked_symbol(mode.shape_env, None), 4)
    assert predict_values(traced(mode, aten.mul.Tensor, x, x)) is None
