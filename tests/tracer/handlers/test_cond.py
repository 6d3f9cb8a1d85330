"""Tests of minidynamo/tracer/handlers/cond.py: the capture of a cond. Programs: end_to_end/torch/test_cond.py."""

import pytest
import torch

from minidynamo import cond
from minidynamo.errors import Unsupported
from minidynamo.graph.higher_order import is_cond
from tests.tracer.capturing import capture, placeholders, targets


def test_the_node_takes_operands_and_lifted_tensors_once():
    w = torch.ones(2)

    def f(pred, x):
        y = x * 2
        return cond(pred, lambda x: x + w + y, lambda x: w * x, (x,))

    traced = capture(f, torch.tensor(True), torch.ones(2))
    assert placeholders(traced) == ["x", "pred", "w"]
    (node,) = filter(is_cond, traced.graph.graph.nodes)
    assert [operand.name for operand in node.args[3]] == ["x", "w", "mul"]


def test_branches_of_a_branch_are_subgraphs_of_the_subgraph():
    def f(pred, x):
        return cond(pred, lambda: cond(pred, lambda: x + 1, lambda: x + 2), lambda: x + 3)

    traced = capture(f, torch.tensor(True), torch.ones(2))
    (node,) = filter(is_cond, traced.graph.graph.nodes)
    inner = traced.graph.get_submodule(node.args[1].target)
    assert [name for name, _ in inner.named_children()] == ["true_graph_0", "false_graph_0"]
    assert sorted(name for name, _ in traced.graph.named_children()) == ["false_graph_1", "true_graph_1"]


def test_a_python_number_leaves_no_node():
    def f(n, x):
        return cond(n, lambda: x + 1, lambda: x - 1)

    assert [target.__name__ for target in targets(capture(f, 0, torch.ones(2)))] == ["sub"]


def test_results_of_the_false_branch_get_the_strides_of_the_true_one():
    def f(pred, x):
        return cond(pred, lambda: x + 1, lambda: (x.t() + 1).contiguous().t()).stride()

    assert capture(f, torch.tensor(True), torch.ones(2, 3)).exit.value.items[0].value == 3


def test_the_error_names_the_line_in_the_branch():
    def deep(x):
        return x.tolist()

    def f(pred, x):
        return cond(pred, lambda: deep(x), lambda: x - 1)

    with pytest.raises(Unsupported) as caught:
        capture(f, torch.tensor(True), torch.ones(2))
    assert caught.value.diagnostic.where.function == "deep"
    assert caught.value.diagnostic.where.expression() == "x.tolist()"


def test_grad_mode_must_be_left_as_it_was():
    def f(pred, x):
        return cond(pred, lambda: (torch.set_grad_enabled(False), x + 1)[1], lambda: x - 1)

    with pytest.raises(Unsupported, match="changes grad mode"):
        capture(f, torch.tensor(True), torch.ones(2))
    assert torch.is_grad_enabled()
