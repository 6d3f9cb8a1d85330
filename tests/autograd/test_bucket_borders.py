"""Graphs that are cut where a bucket of gradients is full compute what whole graphs compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.autograd import bucket_borders
from minidynamo.autograd.bucket_borders import add_borders, remove_borders
from minidynamo.testing import EagerAndRecordGraphs

BACKENDS = ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


class Crossing(Model):
    """Subscripts a tuple after a border."""

    def forward(self, x):
        parts = super().forward(x).split(2, 1)
        return self.layers[0](super().forward(x)) * parts[0].sum() + parts[1].sum()


def gradients(model, compile_it):
    torch.manual_seed(0)
    m = compile_it(model().double())
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    y = m(x)
    y.pow(2).sum().backward()
    return [y, x.grad, *(p.grad for p in m.parameters())]


def graph_of(model):
    backend = EagerAndRecordGraphs()
    minidynamo.compile(model, backend=backend, fullgraph=True)(torch.rand(3, 4))
    return backend.graphs[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [Model, Crossing])
@pytest.mark.parametrize("limits", [(1, 1), (100, 200), (10_000, 10_000)])
def test_the_same_gradients(backend, model, limits, monkeypatch):
    monkeypatch.setattr(bucket_borders.compat, "bucket_limits", lambda: limits)
    expected = gradients(model, lambda m: m)
    torch.testing.assert_close(gradients(model, lambda m: minidynamo.compile(m, backend=backend)), expected)


@pytest.mark.parametrize(
    "limits, borders", [((1, 1), 3), ((81, 81), 1), ((1, 81), 2), ((10_000, 10_000), 0), (None, 0)]
)
def test_borders_end_buckets_from_the_last_layer_on(limits, borders, monkeypatch):
    monkeypatch.setattr(bucket_borders.compat, "bucket_limits", lambda: limits)
    gm = graph_of(Model())
    before = str(gm.graph)
    assert add_borders(gm) is (borders > 0)
    names = [getattr(node.target, "__name__", "") for node in gm.graph.nodes]
    assert names.count("bucket_border") == borders
    remove_borders(gm)
    assert str(gm.graph) == before


def test_without_gradients_there_is_no_border(monkeypatch):
    monkeypatch.setattr(bucket_borders.compat, "bucket_limits", lambda: (1, 1))
    with torch.no_grad():
        assert not add_borders(graph_of(Model()))
