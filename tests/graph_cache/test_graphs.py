"""Loaded graphs equal the stored graphs, with fake values and lines; loading adds no conditions on their sizes."""

from __future__ import annotations

import json
import operator
from typing import Any

import pytest
import torch
from torch import fx

from minidynamo.autograd.aot import aot_graphs
from minidynamo.compat import FakeTensorMode, symbolic
from minidynamo.errors import UserLocation
from minidynamo.graph.boxed import make_boxed
from minidynamo.graph.marks import DIES, PART_OF, Call
from minidynamo.graph_cache.encoding import Damaged, NotStorable
from minidynamo.graph_cache.graphs import read_graph, write_graph
from minidynamo.graph_cache.key import Key, key_of

LINE = UserLocation("program.py", 3, "f")


def program(x: Any, y: Any) -> Any:
    n = x.size(0)
    return (x.exp() @ y).split([1, n - 1], 0)[1].view(-1).sin() * n


def traced(examples: list[Any], function: Any = program) -> fx.GraphModule:
    gm = fx.symbolic_trace(function)
    for node, example in zip(gm.graph.nodes, examples):
        node.meta["example_value"] = example
    for node in gm.graph.nodes:
        node.meta["user_location"] = LINE
    return gm


def examples(*, dynamic: bool) -> list[Any]:
    env = symbolic().ShapeEnv() if dynamic else None
    mode = FakeTensorMode(shape_env=env)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(3, 5)
    if env is None:
        return [mode.from_tensor(x), mode.from_tensor(y)]
    return [mode.from_tensor(x, static_shapes=False), mode.from_tensor(y, static_shapes=False)]


def written(dynamic: bool) -> tuple[fx.GraphModule, Key, Any]:
    inputs = examples(dynamic=dynamic)
    gm = traced(inputs)
    key = key_of(gm, inputs, {}, {})
    backward = aot_graphs(gm, inputs).backward
    assert backward is not None
    next(node for node in backward.graph.nodes if node.op == "call_function").meta[PART_OF] = Call("mm", 3)
    return backward, key, json.loads(json.dumps(write_graph(backward, key)))


def count(gm: fx.GraphModule) -> int:
    return sum(node.op == "placeholder" for node in gm.graph.nodes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_comes_back_as_it_was(dynamic: bool) -> None:
    backward, key, form = written(dynamic)
    env = key.symbols.env
    before = None if env is None else [*env.guards]
    again = read_graph(form, key, inputs=count(backward))
    assert str(again.graph) == str(backward.graph)
    for one, other in zip(backward.graph.nodes, again.graph.nodes, strict=True):
        old, new = one.meta.get("val"), other.meta.get("val")
        assert one.target == other.target and one.meta.get("user_location") == other.meta.get("user_location")
        assert one.meta.get(PART_OF) == other.meta.get(PART_OF)
        assert type(old) is type(new) and (DIES in one.meta) is (DIES in other.meta)
        if isinstance(old, torch.Tensor):
            assert [old.dtype, old.device, *map(str, (*old.shape, *old.stride()))] == [
                *(new.dtype, new.device),
                *map(str, (*new.shape, *new.stride())),
            ]
    assert dynamic is (env is not None) and (env is None or env.guards == before)


def test_a_graph_that_came_back_computes_the_same() -> None:
    backward, key, form = written(False)
    inputs = [torch.randn(n.meta["val"].shape) for n in backward.graph.nodes if n.op == "placeholder"]
    again = read_graph(form, key, inputs=len(inputs))
    for one, other in zip(make_boxed(backward)([*inputs]), make_boxed(again)([*inputs]), strict=True):
        assert one is other is None or torch.equal(one, other)


def test_what_has_no_written_form_is_named() -> None:
    inputs = examples(dynamic=False)
    key = key_of(traced(inputs), inputs, {}, {})

    def graph(*nodes: Any) -> fx.GraphModule:
        made = fx.Graph()
        for target, value in nodes:
            made.call_function(target, (1, 2)).meta["val"] = value
        return fx.GraphModule(torch.nn.Module(), made)

    with pytest.raises(NotStorable, match="function"):
        write_graph(graph((json.dumps, None)), key)
    with pytest.raises(NotStorable, match="unusual"):
        with inputs[0].fake_mode:
            value = torch.randn(2, dtype=torch.complex64).conj()
        write_graph(graph((operator.add, value)), key)
    strange = symbolic().ShapeEnv().create_unbacked_symint()
    with pytest.raises(NotStorable, match="not its own"):
        write_graph(graph((operator.add, strange)), key)


@pytest.mark.parametrize("damage", [lambda f: f[:-1], lambda f: f[1:], lambda f: [["call_module", *f[0][1:]], *f]])
def test_another_form_is_damaged(damage: Any) -> None:
    backward, key, form = written(False)
    with pytest.raises(Damaged):
        read_graph(damage(form), key, inputs=count(backward))
