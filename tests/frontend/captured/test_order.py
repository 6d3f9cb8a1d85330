"""The order of the nodes of a backward, against autograd's own."""

from __future__ import annotations

import random

import pytest
import torch

from minidynamo.frontend.captured.order import _Graph, _node_of, positions


def _random_graph(seed, log):
    """Returns the last tensor of a random program; each node appends its name to `log` when it runs."""
    choose, values = random.Random(seed), [torch.ones(2, requires_grad=True) for _ in range(3)]
    for leaf in values:
        leaf.register_post_accumulate_grad_hook(lambda leaf: log.append(id(leaf)))
    leaves = list(values)
    for i in range(12):
        count = choose.choice((1, 2, 3))
        made = sum(choose.choices(values, k=count), start=choose.choice(values)).sin()
        made.grad_fn.register_hook(lambda *_, i=i: log.append(i))
        made.grad_fn.metadata["number"] = i
        values.append(made)
    return sum(values[3:], start=values[-1]).sum(), leaves


@pytest.mark.parametrize("seed", range(10))
def test_nodes_come_in_the_order_in_which_autograd_runs_them(seed):
    log = []
    total, _ = _random_graph(seed, log)
    graph = _Graph([total.grad_fn], set())
    total.backward()
    expected = [
        id(node.variable) if hasattr(node, "variable") else node.metadata["number"]
        for node in graph.run()[1:]
        if hasattr(node, "variable") or "number" in node.metadata
    ]
    assert log == expected


def test_only_nodes_before_the_requested_tensors_run():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    middle = x.sin()
    total = (middle * y.cos()).sum()
    graph = _Graph([total.grad_fn], {_node_of(middle)})
    assert [node.name() for node in graph.run()[1:]] == ["SumBackward0", "MulBackward0", "SinBackward0"]


def test_a_walk_with_other_nodes_keeps_its_order():
    x = torch.ones(2, requires_grad=True)
    names = ["torch::autograd::GraphRoot", "SinBackward0", "torch::autograd::AccumulateGrad"]
    assert positions([*names, "Other"], [x.sin()], ()) == {0: 0, 1: 1, 2: 2, 3: 3}
