"""Tests of minidynamo/autograd/partition/packing.py: positions of hooks in graphs, and the saved values."""

from __future__ import annotations

import pytest
import torch

from minidynamo.autograd.aot import aot_graphs
from minidynamo.autograd.graph.signature import GraphSignature, NodeGraph, SavedIndex, Unpacked
from minidynamo.autograd.partition.packing import readers_of_tensors, unpacking
from minidynamo.config import config
from minidynamo.errors import InvalidHook
from minidynamo.graph.marks import DIES
from minidynamo.graph.saved_tensor_hooks import Hooks
from tests.autograd.programs import graph_of

aten = torch.ops.aten


def half(x):
    return x.to(torch.float16)


def single(x):
    return x.to(torch.float32)


def ones(*shape):
    return torch.ones(shape, requires_grad=True)


def packed(program, args, pack=half, unpack=single, mode="donated", dynamic=False):
    with config.patch(saved_tensors_hooks_filtering_mode=mode):
        return aot_graphs(*graph_of(program, args, dynamic=dynamic), hooks=Hooks(pack, unpack))


def names(graph, stage):
    """Returns the results of a forward graph, or the inputs of a backward graph."""
    if stage == "takes":
        return [node.name for node in graph.graph.find_nodes(op="placeholder")]
    return [node.name for node in graph.graph.output_node().args[0]]


def steps(x):
    for _ in range(3):
        x = (x * 2).sin()
    return (x,)


def test_what_is_returned_is_what_is_taken():
    def program(x, w):
        return ((x @ w).sin().exp() * w).tanh(), x.cos()

    for mode in ("donated", "no_static", "all"):
        graphs = packed(program, [ones(3, 3), ones(3, 3)], lambda x: (x.half(), x.sum()), lambda p: p[0].float(), mode)
        parts, given = graphs.partition, names(graphs.backward, "takes")
        made = names(graphs.forward, "returns")[graphs.signature.results :]
        assert [name for name, (kind, _) in zip(given, parts.sources) if kind == "extra"] == made
        assert [parts.sources.index(("extra", i)) for i in range(len(made))] == sorted(
            parts.sources.index(("extra", i)) for i in range(len(made))
        )
        assert [value.name for value in graphs.signature.saved] == given[: len(parts.saved)]
        assert any(name.endswith("_hook_1") for name in made)


def test_a_hook_that_does_nothing_adds_nothing():
    graphs = packed(steps, [ones(4)], lambda x: x, lambda x: x)
    without = aot_graphs(*graph_of(steps, [ones(4)]))
    for stage in ("forward", "backward"):
        assert getattr(graphs, stage).code == getattr(without, stage).code
    assert [one.form for one in graphs.signature.unpacked] == [SavedIndex(0), SavedIndex(1), SavedIndex(2)]


def test_what_dies_in_backward():
    def dying(pack, unpack, mode="donated"):
        graphs = packed(lambda x: (x.sin().exp().tanh() + x,), [ones(4)], pack, unpack, mode)
        inputs = graphs.backward.graph.find_nodes(op="placeholder")
        return {node.name for node in inputs if DIES in node.meta and not node.name.startswith("tangents")}

    def view(x):
        return x.view(2, 2)

    assert {"arg0_hook_0", "exp_hook_0"} <= dying(half, single, "all")
    assert "arg0_hook_0" not in dying(view, lambda x: x.view(4), "all")  # shares memory with an argument
    # Neither value may be overwritten before the last read of its alias.
    assert not dying(lambda x: (x, x.view(2, 2)), lambda p: p[1].view(4) * 0 + p[0])


def test_layouts_are_those_of_the_tensors():
    def program(x):
        return ((x * 2).t().sin(),)

    graphs = packed(program, [ones(3, 4)], lambda x: x.contiguous(), lambda x: x, mode="all")
    (cos,) = graphs.backward.graph.find_nodes(op="call_function", target=aten.cos.default)
    assert cos.args[0].meta["val"].stride() == (1, 4)


def test_numbers_come_behind_tensors():
    def pack(x):
        return x.shape[0], x.flatten(), x.shape[1]

    def unpack(p):
        return p[1].view(p[0], p[2])

    graphs = packed(lambda x: ((x + 1).sin().exp().tanh(),), [ones(3, 4)], pack, unpack, dynamic=True)
    kept = names(graphs.backward, "takes")[: len(graphs.partition.saved)]
    numbers = [name for name in kept if name.endswith(("_hook_0", "_hook_2"))]
    assert numbers and kept[-len(numbers) :] == numbers
    (found, *_) = (one for one in graphs.signature.unpacked if one.layout is not None)
    kinds = [kept[place.index] for place in found.form]
    assert [name.rpartition("_")[2] for name in kinds] == ["0", "1", "2"]


def test_a_tensor_at_least():
    with pytest.raises(InvalidHook, match="it returns no tensor"):
        packed(steps, [ones(4)], lambda x: (x.shape[0], "file"), lambda p: p)


def test_tensors_are_unpacked_outside_of_the_graph():
    graphs = packed(steps, [ones(4)], lambda x: {"a": x.half(), "b": 2}, lambda p: p["a"].float() * p["b"])
    unpack = unpacking(graphs.signature, lambda p: p["a"].float() * p["b"])
    kept = [torch.full((4,), float(i), dtype=torch.float16) for i in range(3)]
    made = unpack([kept[0], None, kept[2]], [])
    assert torch.equal(made[0], torch.zeros(4)) and made[1] is None and torch.equal(made[2], torch.full((4,), 4.0))


def test_what_is_kept_for_some_results():
    form, other = Unpacked((SavedIndex(1), 3), None), Unpacked(SavedIndex(0))
    signature = GraphSignature(("x",), (), unpacked=(form, other), graph=NodeGraph(readers=((), (0,))))
    assert readers_of_tensors(signature) == ((0,), ())
    assert readers_of_tensors(GraphSignature(("x",), (), graph=NodeGraph(readers=((1,),)))) == ((1,),)
