"""Compiled graphs, stored and loaded again: equal results from equal texts."""

import json

import pytest
import torch

from minidynamo.codegen import stored
from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.core import artifacts
from minidynamo.errors import UserLocation
from minidynamo.graph_cache.encoding import Codec, Damaged, GraphContext, NotStorable
from tests.codegen.graphs import compare, flat, located, trace

aten = torch.ops.aten
PLACES = tuple(UserLocation("/home/somebody/train.py", line, "step") for line in (2, 3, 4))
CODEC = Codec(GraphContext(None, PLACES), stored.RECORDS)


def stored_form(compiled, codec=CODEC):
    return json.loads(json.dumps(stored.write_graph(compiled, codec)))


def normal(x):
    return torch.layer_norm(x, (16,)), *x.topk(2), x.to(torch.bfloat16), x[:, ::2].t() @ x, torch.rand_like(x)


@pytest.mark.parametrize(
    "target", [pytest.param("cpp", marks=pytest.mark.cpp), pytest.param("triton", marks=pytest.mark.slow), "aten"]
)
def test_what_was_stored_computes_the_same(target):
    x = torch.randn(8, 16)
    compiled = compile_graph(trace(normal, x), target=target)
    again = stored.read_graph(stored_form(compiled), CODEC)
    torch.manual_seed(1)
    expected = compiled.call([x])
    torch.manual_seed(1)
    boxed = [x]
    compare(flat(again(boxed)), flat(expected), exact=True)
    assert boxed == [] and again._boxed_call


@pytest.mark.cpp
def test_texts_are_those_of_the_first_compile():
    with artifacts.collected() as first:
        compiled = compile_graph(located(), target="cpp")
    with artifacts.collected() as second:
        stored.read_graph(stored_form(compiled), CODEC)
    kinds = [text.kind for text in first]
    assert kinds == ["loops", "kernel", "memory", "host"] == [text.kind for text in second]
    assert [text.text for text in first][1:] == [text.text for text in second][1:]
    assert "train.py:3" in second[-1].text


@pytest.mark.cpp
def test_no_line_or_path_of_the_user_is_stored():
    compiled = compile_graph(located(), target="cpp")
    assert "train.py" not in json.dumps(stored_form(compiled))


def test_a_graph_with_an_operator_of_others_is_not_stored():
    with torch.library._scoped_library("mdstored", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        x = torch.ones(2)
        compiled = compile_graph(trace(torch.ops.mdstored.twice, x), target="aten")
        with pytest.raises(NotStorable):
            stored_form(compiled)


@pytest.mark.parametrize(
    "damage",
    [
        lambda form: form.clear(),
        lambda form: form.update(target="cobol"),
        lambda form: form.update(kernels=3),
        lambda form: form.update(kernels=[["a"]]),
        lambda form: form["names"].update(x={"op": "os::system"}),
        lambda form: form["names"].update(x={"function": "exec"}),
        lambda form: form["names"].update(x={"kernel": "none"}),
    ],
)
def test_a_form_that_nobody_wrote_is_refused(damage):
    x = torch.ones(3)
    form = stored_form(compile_graph(trace(torch.erfinv, x), target="aten"))
    damage(form)
    with pytest.raises(Damaged):
        stored.read_graph(form, CODEC)
