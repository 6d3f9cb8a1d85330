"""Tests of minidynamo/autograd/partition/saved_views.py: saved values that share memory with another saved value."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from minidynamo.autograd.partition.saved_views import fake_view, saved_parts, view_of
from minidynamo.graph.marks import WRITTEN

aten = torch.ops.aten


def graph_of(program, *written):
    """Returns a graph and its nodes by name; marks the nodes `written` as writes of the program to their first
    argument."""
    gm = make_fx(program, tracing_mode="fake")(torch.rand(6, 4))
    nodes = {node.name: node for node in gm.graph.nodes}
    for name in written:
        nodes[name].meta[WRITTEN] = {0: 0}
    return gm, nodes


def rows(x):
    return torch.slice_scatter(x, x[2:].tanh(), 0, 2)


def test_what_is_written_to_a_part_is_a_view_of_what_lasts():
    gm, nodes = graph_of(rows, "tanh", "slice_scatter")
    found = saved_parts([nodes["tanh"]], {nodes["slice_scatter"]})
    assert list(found) == [nodes["tanh"]]
    part = found[nodes["tanh"]]
    assert fake_view(part).shape == (4, 4) and fake_view(part).storage_offset() == 8
    view = view_of(gm.graph, part, {nodes["slice_scatter"]: nodes["slice_scatter"]}, nodes["tanh"])
    assert view.target is aten.slice.Tensor and view.args == (nodes["slice_scatter"], 0, 2)


def test_what_does_not_last_keeps_nothing():
    _, nodes = graph_of(rows, "tanh", "slice_scatter")
    assert not saved_parts([nodes["tanh"]], {nodes["x_1"]})


def test_what_was_copied_into_a_part_is_no_view_of_it():
    _, nodes = graph_of(rows, "slice_scatter")
    assert not saved_parts([nodes["tanh"]], {nodes["slice_scatter"]})


def test_parts_of_parts_and_of_views():
    def program(x):
        flat = x.view(-1)
        part = torch.slice_scatter(flat[4:], flat[4:][:8].exp(), 0, 0, 8)
        return torch.slice_scatter(flat, part, 0, 4).view(6, 4)

    _, nodes = graph_of(program, "exp", "slice_scatter", "slice_scatter_1")
    views = [node for node in nodes.values() if node.target is aten.view.default]
    ((_, steps),) = saved_parts([nodes["exp"]], {views[-1]}).values()
    assert [op for op, _ in steps] == [aten.view.default, aten.slice.Tensor, aten.slice.Tensor]
    assert fake_view((views[-1], steps)).storage_offset() == 4


def test_readers_that_would_give_another_layout_keep_the_part():
    def columns(x):
        part = x[:, 1:].tanh()
        return torch.slice_scatter(x, part, 1, 1), part.view(-1)

    _, nodes = graph_of(columns, "tanh", "slice_scatter")
    assert not saved_parts([nodes["tanh"]], {nodes["slice_scatter"]})
