"""Tests of minidynamo/autograd/graph/recomputation.py: values that backward may recompute, and values not saved as a
result."""

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.autograd.graph.recomputation import (
    CHEAP,
    MODERATE,
    droppable,
    is_pointwise,
    is_random,
    is_view_or_item,
    recomputable,
)
from minidynamo.config import config
from tests.autograd.programs import graphs, module_program

aten = torch.ops.aten


def chain(*ops):
    """Returns a graph that applies `ops` to a placeholder in sequence, and the nodes."""
    graph = fx.Graph()
    nodes = [graph.placeholder("x")]
    for op in ops:
        nodes.append(graph.call_function(op, (nodes[-1],)))
    for node in nodes:
        node.meta["val"] = torch.empty(2)
    return nodes


def test_cheap_and_moderate_operations_are_pointwise_and_no_random_ones():
    x, drawn, root, viewed, sine = chain(aten.rand_like.default, aten.sqrt.default, aten.t.default, aten.sin.default)
    assert is_random(drawn) and not is_random(root) and not CHEAP & MODERATE
    assert [is_pointwise(node) for node in (x, drawn, root, viewed, sine)] == [False, False, True, False, False]
    assert is_view_or_item(viewed) and not is_view_or_item(root)
    with config.patch(recompute=False):
        assert not is_pointwise(root)


def test_chains_hold_one_activation_and_eight_operations():
    first, second = chain(*[aten.neg.default] * 9), chain(aten.tanh.default, aten.neg.default, aten.sigmoid.default)
    assert recomputable(first[0].graph) == set(first[1:9])
    assert recomputable(second[0].graph) == set(second[1:3])


def test_a_value_next_to_a_kept_one_is_not_kept():
    x, tanh, neg, sigmoid, sine = chain(aten.tanh.default, aten.neg.default, aten.sigmoid.default, aten.sin.default)
    assert droppable([tanh, sigmoid], [neg, sigmoid], lambda _: True) == {sigmoid}
    assert droppable([tanh, sigmoid], [neg, sigmoid], lambda node: node is not sigmoid) == set()
    assert droppable([x, tanh, sigmoid], [tanh, sigmoid], lambda node: node.op != "placeholder") == {tanh}
    assert droppable([sine], [sine], lambda _: True) == set()


def test_what_is_given_up_makes_no_chain_too_long():
    nodes = chain(*[aten.neg.default] * 20)
    kept = [node for node in nodes if nodes.index(node) % 4 == 0]
    dropped = droppable(kept, [nodes[-1]], lambda node: node.op != "placeholder")
    assert [nodes.index(node) for node in kept if node not in dropped] == [0, 12]


def test_nothing_is_computed_from_what_is_not_there():
    _, tanh, neg = chain(aten.tanh.default, aten.neg.default)
    assert droppable([tanh], [neg], lambda _: True) == set()


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x):
        state = (x.new_zeros(2, 4), x.new_zeros(2, 4))
        for _ in range(6):
            state = self.cell(x, state)
        return state[0]


def test_a_recurrent_net_keeps_its_gates_and_some_of_its_states():
    program, values = module_program(Cells())
    made = graphs(program, [torch.ones(2, 3), *values()[0]])
    kept = [value.op for value in made.signature.saved if value.op != "input"]
    # Each cell saves four gates; two of the six consecutive states, and the tanh of the last state, are saved, too.
    assert {op: kept.count(op) for op in kept if "new_zeros" not in op} == {
        "aten.sigmoid.default": 18,
        "aten.tanh.default": 7,
        "aten.add.Tensor": 2,
    }


def test_what_a_checkpoint_computes_is_computed_again():
    """Even matrix products, which are saved elsewhere, are recomputed; the result of a checkpoint is not recomputed for
    the next checkpoint."""

    def layer(x, w, v):
        return x + torch.nn.functional.dropout((x @ w).gelu() @ v if False else torch.tanh(x @ w) @ v, 0.5)

    def program(x, w, v):
        for _ in range(3):
            x = checkpoint(layer, x, w, v, use_reentrant=False)
        return x.square().sum()

    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    found = []
    for call in (program, compiled):
        torch.manual_seed(0)
        shapes = (4, 8), (8, 16), (16, 8)
        args = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        first = torch.autograd.grad(call(*args), args, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(g.sum() for g in first), args)])
    torch.testing.assert_close(*found)
    kept = [(value.op, value.shape, value.dtype.itemsize) for value in compiled.saved()]
    kept = sorted(value for value in kept if value[0] != "input")
    assert kept == [("aten.add.Tensor", (4, 8), 8)] * 3 + [("aten.bernoulli.p", (4, 8), 1)] * 3
