"""Tests of minidynamo/autograd/graph/graph_builder.py."""

import pytest
import torch

from minidynamo.autograd.graph.graph_builder import GraphBuilder, same_layout
from minidynamo.compat import FakeTensorMode

aten = torch.ops.aten


@pytest.fixture
def emitter():
    return GraphBuilder(FakeTensorMode())


def placeholder(emitter, tensor):
    return emitter.placeholder("x", emitter.mode.from_tensor(tensor))


def test_nodes_know_their_values(emitter):
    node = emitter.emit(aten.add.Tensor, placeholder(emitter, torch.ones(2, 3)), 1)
    assert node.name == "add" and tuple(node.meta["val"].shape) == (2, 3)
    pair = emitter.emit(aten.max.dim, node, 0)
    assert emitter.element(pair, 1).meta["val"].dtype is torch.int64


def test_metadata_is_taken_over(emitter):
    x = placeholder(emitter, torch.ones(2))
    x.meta["user_location"] = "here"
    with emitter.replacing(x):
        assert emitter.emit(aten.neg.default, x).meta["user_location"] == "here"
    assert "user_location" not in emitter.emit(aten.neg.default, x).meta


def test_reshape_copies_only_where_strides_demand_it(emitter):
    x = placeholder(emitter, torch.ones(2, 3))
    flat = placeholder(emitter, torch.ones(6))
    assert emitter.reshape(x, placeholder(emitter, torch.zeros(2, 3))) is x
    assert emitter.reshape(x, flat).args[0] is x
    turned = emitter.emit(aten.t.default, x)
    assert emitter.reshape(turned, flat).args[0].target is aten.clone.default


@pytest.mark.parametrize("like", [torch.ones(3, 2).t(), torch.ones(4, 2, 3).permute(1, 2, 0)], ids=["two", "three"])
def test_restride(emitter, like):
    node = emitter.restride(placeholder(emitter, torch.ones(like.shape)), like)
    assert node.meta["val"].stride() == like.stride()


def test_restride_leaves_what_cannot_or_need_not_change(emitter):
    x = placeholder(emitter, torch.ones(2, 3))
    assert emitter.restride(x, torch.ones(2, 3)) is x
    assert emitter.restride(x, torch.ones(2, 6)[:, ::2]) is x
    assert emitter.restride(x, torch.ones(3).expand(2, 3)) is x


def test_cast(emitter):
    x = placeholder(emitter, torch.ones(2))
    assert emitter.cast(x, torch.ones(2)) is x
    assert emitter.cast(x, torch.ones(2, dtype=torch.float16)).meta["val"].dtype is torch.float16


def test_same_layout():
    x = torch.ones(4, 4)
    assert same_layout(x, torch.ones(4, 4)) and not same_layout(x, x.t()[:, :3]) and not same_layout(x, None)
    assert same_layout(x, x.detach(), memory=True) and not same_layout(x, x.clone(), memory=True)
    assert not same_layout(x[1], x[2], memory=True) and same_layout(x[1], x[2])
