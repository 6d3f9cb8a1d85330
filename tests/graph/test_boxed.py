"""Tests of minidynamo/graph/boxed.py: the calling convention, generated programs, and the readable text of graphs."""

from __future__ import annotations

import functools
import inspect
import linecache
import math
import operator
import warnings
import weakref

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import fx

from minidynamo import compat
from minidynamo.errors import UserLocation
from minidynamo.graph import boxed
from minidynamo.graph.boxed import graph_text

alive = []  # records of the probe, per call


def make_probe(**refs):
    """Returns a function that records the live objects among the weakly referenced ones, and returns its input."""

    def probe(x):
        alive.append("".join(name for name, ref in refs.items() if ref() is not None))
        return x.clone()

    return probe


@pytest.fixture(autouse=True)
def clear():
    alive.clear()


def graph_of(build):
    graph = fx.Graph()
    build(graph)
    return fx.GraphModule(torch.nn.Module(), graph)


def test_values_die_behind_their_last_use():
    x, y = torch.ones(3), torch.ones(3)
    probe = make_probe(x=weakref.ref(x), y=weakref.ref(y))

    def build(graph):
        a, b, _ = (graph.placeholder(name) for name in ("a", "b", "unused"))
        c = graph.call_function(probe, (graph.call_function(torch.add, (a, 1)),))
        d = graph.call_function(probe, (graph.call_function(torch.mul, (c, b)),))
        graph.output((d,))

    call = boxed.make_boxed(graph_of(build))
    args = [x, y, z := torch.ones(1)]
    gone = weakref.ref(z)
    del x, y, z
    (out,) = call(args)
    assert args == [] and gone() is None
    assert alive == ["y", ""]
    assert torch.equal(out, torch.full((3,), 2.0))
    source = inspect.getsource(call)
    assert source.index("a, b, unused = args") < source.index("args.clear()") < source.index("del unused")
    assert "add = torch_add(a, 1); del a\n" in source
    assert "del probe, b\n" in source


def test_a_stolen_list_is_emptied_and_its_elements_die():
    a, b, c = torch.ones(2), torch.ones(2), torch.ones(2)
    probe = make_probe(a=weakref.ref(a), b=weakref.ref(b), c=weakref.ref(c))

    def build(graph):
        xs = graph.placeholder("xs")
        xs.meta["steal_arg"] = True
        first = graph.call_function(torch.add, (graph.call_function(operator.getitem, (xs, 0)), 1))
        out = graph.call_function(probe, (first,))
        out = graph.call_function(torch.add, (out, graph.call_function(operator.getitem, (xs, 1))))
        graph.output((graph.call_function(probe, (out,)),))

    call = boxed.make_boxed(graph_of(build))
    for _ in range(2):
        xs = [a, b, c] if _ == 0 else [torch.ones(2)] * 3
        del alive[:]
        if _ == 0:
            del a, b, c
        (out,) = call([xs])
        assert xs == [] and torch.equal(out, torch.full((2,), 3.0))
        assert alive == (["b", ""] if _ == 0 else ["", ""])


def test_a_stolen_list_used_as_a_whole_keeps_its_elements_for_that_use():
    def build(graph):
        xs = graph.placeholder("xs")
        xs.meta["steal_arg"] = True
        graph.output((graph.call_function(torch.stack, (xs,)), graph.call_function(operator.getitem, (xs, 1))))

    xs = [torch.zeros(2), torch.ones(2)]
    out, second = boxed.make_boxed(graph_of(build))([xs])
    assert xs == [] and out.shape == (2, 2) and torch.equal(second, torch.ones(2))


def test_an_unstolen_list_is_left_alone():
    def build(graph):
        xs = graph.placeholder("xs")
        graph.output((graph.call_function(operator.getitem, (xs, 0)),))

    xs = [torch.zeros(2), torch.ones(2)]
    (out,) = boxed.make_boxed(graph_of(build))([xs])
    assert len(xs) == 2 and out is xs[0]


def test_every_kind_of_argument_can_be_printed():
    def build(graph):
        x = graph.placeholder("args")  # a name that the generated text uses itself
        y = graph.call_function(
            torch.full, ((2, 1), -math.inf), {"dtype": torch.float64, "device": torch.device("cpu")}
        )
        y = graph.call_function(torch.cat, ([y, x],), {"dim": 1})
        y = graph.call_function(operator.getitem, (y, (..., slice(None, 2), None)))
        y = graph.call_method("clamp", (y,), {"min": -2.5, "max": math.inf})
        y = graph.call_function(torch.ops.aten.clone.default, (y,), {"memory_format": torch.contiguous_format})
        graph.output((y, 3, None, {"a": "b"}, torch.Size([2])))

    out = boxed.make_boxed(graph_of(build))([torch.zeros(2, 1, dtype=torch.float64)])
    assert torch.equal(out[0], torch.tensor([[[-2.5], [0.0]], [[-2.5], [0.0]]], dtype=torch.float64))
    assert out[1:] == (3, None, {"a": "b"}, (2,))


def test_attributes_and_submodules_of_a_traced_module():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    x = torch.randn(4, 2)
    assert torch.equal(boxed.make_boxed(fx.symbolic_trace(model))([x]), model(x))


def test_an_error_restores_the_grad_mode():
    def fail(x):
        raise RuntimeError("out of memory")

    def build(graph):
        x = graph.placeholder("x")
        graph.call_function(compat.set_grad_enabled, (False,))
        y = graph.call_function(fail, (x,))
        graph.call_function(compat.set_grad_enabled, (True,))
        graph.output((y,))

    with pytest.raises(RuntimeError, match="out of memory"):
        boxed.make_boxed(graph_of(build))([torch.ones(1)])
    assert torch.is_grad_enabled()


def test_adapters():
    plain = boxed.make_boxed_func(lambda x, y: (x + y,))
    args = [1, 2]
    assert plain(args) == (3,) and args == []
    assert boxed.is_boxed(plain) and not boxed.is_boxed(torch.add)
    call = boxed.make_boxed(graph_of(lambda graph: graph.output((graph.placeholder("x"),))))
    with pytest.raises(TypeError, match="one list of arguments, not tuple"):
        call((1,))


def test_an_adapted_function_takes_one_list_too():
    with pytest.raises(TypeError, match="takes one list of arguments, not Tensor"):
        boxed.make_boxed_func(torch.neg)(torch.ones(2))


def pair(x, y):
    return (x - y, x * y)


@functools.wraps(boxed.mark_boxed(lambda args: pair(*args)))
def separate_with_a_copied_mark(*args):
    return pair(*args)


@functools.wraps(boxed.mark_boxed(lambda args: pair(*args)))
def list_with_a_copied_mark(*args):
    (values,) = args
    x, y = values
    values.clear()
    return pair(x, y)


class Boxed:
    _boxed_call = True

    def __call__(self, args):
        x, y = args
        args.clear()
        return pair(x, y)


CALLABLES = {
    "no mark": (pair, True),
    "partial": (functools.partial(pair), True),
    "a list": (boxed.mark_boxed(lambda args: pair(*args)), False),
    "an instance that takes a list": (Boxed(), False),
    "a copied mark, separate": (separate_with_a_copied_mark, True),
    "a copied mark, a list": (list_with_a_copied_mark, False),
    "torch's adapter": (make_boxed_func(pair), False),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_what_a_callable_takes_is_found_out(kind):
    function, is_separate = CALLABLES[kind]
    x, y = torch.ones(2), torch.full((2,), 3.0)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        call = boxed.as_boxed(function, "backend")
        for _ in range(3):
            results = call([x, y])
            assert [value.tolist() for value in results] == [[-2, -2], [3, 3]]
    assert len(shown) == is_separate


def test_an_error_of_the_graph_is_no_sign_of_separate_arguments():
    seen = []

    @functools.wraps(boxed.mark_boxed(lambda args: None))
    def fails(*args):
        seen.append(args)
        raise IndexError("index 9 is out of bounds")

    call, args = boxed.as_boxed(fails, "backend"), [torch.ones(2)]
    with pytest.raises(IndexError, match="index 9"):
        call(args)
    assert len(seen) == 1


PROGRAM = "def f(x):\n    y = x.sin() + 1\n    return y * 2\n"


def test_lines_of_the_user_stand_above_what_they_became():
    linecache.cache["/home/somebody/f.py"] = (len(PROGRAM), None, PROGRAM.splitlines(keepends=True), "f.py")
    gm = fx.symbolic_trace(lambda x: (x.sin() + 1) * 2)
    for node, line, col in zip([n for n in gm.graph.nodes if n.op.startswith("call")], (2, 2, 3), (8, 4, 11)):
        node.meta["user_location"] = UserLocation("/home/somebody/f.py", line, "f", col, col + 1)
        node.meta["val"] = torch.empty(4, 2, device="meta")
    lines = [line.partition(";")[0].strip() for line in graph_text(gm).splitlines()]
    start = lines.index("# f.py:2 in f: y = x.sin() + 1")
    assert lines[start:] == [
        "# f.py:2 in f: y = x.sin() + 1",
        'sin: "f32[4, 2]" = x.sin()',
        'add: "f32[4, 2]" = sin + 1',
        "# f.py:3 in f: return y * 2",
        'mul: "f32[4, 2]" = add * 2',
        "return mul",
    ]


def test_a_graph_without_lines():
    text = graph_text(fx.symbolic_trace(lambda x: x + 1))
    assert "x + 1" in text and "#" not in text


def test_subgraphs_have_lines_of_their_own():
    inner, graph = fx.symbolic_trace(lambda x: x.sin()), fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.create_node("get_attr", "part"), graph.call_method("sin", (x,))))
    gm = fx.GraphModule({"part": inner}, graph)
    for part, line in ((gm, 2), (gm.part, 3)):
        node = next(node for node in part.graph.nodes if node.name == "sin")
        node.meta["user_location"] = UserLocation("/home/somebody/f.py", line, "f")
    text = graph_text(gm)
    assert text.index("# f.py:2 in f") < text.index("class part") < text.index("# f.py:3 in f")
