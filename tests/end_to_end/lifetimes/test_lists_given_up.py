"""A list argument is one placeholder; a donated list is emptied, and its elements die one by one."""

from __future__ import annotations

import operator

import pytest
import torch

import minidynamo
from minidynamo.errors import ArgumentError
from minidynamo.testing import CompileCounterWithBackend, StorageWatch, probe

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
ones = torch.ones


def placeholders(gm):
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def elements(gm):
    """Returns the list positions that a graph reads."""
    return [node.args[1] for node in gm.graph.nodes if node.target is operator.getitem]


def same_values(fn, backend, *calls, **options):
    """Calls the compiled function with each of `calls`, twice, and compares with eager; returns the counter."""
    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(fn, backend=counter, **options)
    for make in calls:
        for _ in range(2):
            assert torch.equal(f(*make()), fn(*make()))
    return counter


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_1_tensors_that_are_one_object_are_one_input(backend):
    t, u = ones(3), ones(3) * 2
    calls = [lambda: ([t, t],), lambda: ([t, u],), lambda: ([t, t, t],)]
    counter = same_values(lambda ls: ls[0] + ls[1], backend, *calls)
    assert counter.frame_count == 3
    # Each graph takes one list; the number of tensors read from the list differs.
    assert [len(placeholders(gm)) for gm in counter.graphs] == [1, 1, 1]
    assert [len(elements(gm)) for gm in counter.graphs] == [1, 2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_2_one_placeholder_and_an_item_per_used_element(backend):
    def forward(activations):
        return activations[0].sum() + activations[2].sum()

    for steal in ((), ("activations",)):
        counter = same_values(forward, backend, lambda: ([ones(2), ones(3), ones(4)],), steal=steal)
        (gm,) = counter.graphs
        (given,) = placeholders(gm)
        assert given.name == "activations" and type(given.meta["example_value"]) is list
        assert bool(given.meta.get("steal_arg")) == bool(steal)
        assert elements(gm) == [0, 2]


def used_one_by_one(inputs):
    a, b, c = inputs
    inputs.clear()
    out = a + 1
    del a
    out = probe(out)
    out = out + b
    del b
    out = probe(out)
    out = out + c
    del c
    return probe(out)


def popped(inputs):
    out = inputs.pop(0) + 1
    out = probe(out)
    out = out + inputs.pop(0)
    out = probe(out)
    out = out + inputs.pop()
    return probe(out)


def sliced_away(inputs):
    a, b, c = inputs
    del inputs[:]
    out = a + 1
    del a
    out = probe(out)
    out = out + b
    del b
    out = probe(out)
    out = out + c
    del c
    return probe(out)


def taken_in_a_loop(inputs):
    out = torch.zeros(3)
    while inputs:
        out = probe(out + inputs.pop(0))
    return out


class Clearing(torch.nn.Module):
    def forward(self, inputs):
        return used_one_by_one(inputs)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("fn", [used_one_by_one, popped, sliced_away, taken_in_a_loop, Clearing])
def test_LST_3_elements_of_a_list_that_the_frame_empties_die_as_in_eager(fn, backend):
    fn = fn() if isinstance(fn, type) else fn
    f = fn if backend is None else minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        xs = [ones(3), ones(3), ones(3)]
        watch = StorageWatch(a=xs[0], b=xs[1], c=xs[2])
        out = f(xs)
        assert watch.seen == [["b", "c"], ["c"], []]
        assert xs == [] and out.tolist() == [4.0 if fn is not taken_in_a_loop else 3.0] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_4_the_same_tensor_twice(backend):
    t = ones(3)
    counter = same_values(lambda ls, t: ls[0] * 2 + t, backend, lambda: ([t, ones(3)], t), steal=("ls",))
    assert counter.frame_count == 1
    counter = same_values(lambda ls: ls[0] * 2 + ls[1], backend, lambda: ([t, t],), steal=("ls",))
    assert counter.frame_count == 1
    f = minidynamo.compile(lambda ls, t: ls[0] * 2 + t, backend=backend, steal=("ls",))
    kept = [t, ones(3)]
    assert f(kept, t).tolist() == [3.0] * 3 and kept == [] and t.tolist() == [1.0] * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("other", [2, None, "text", 2.5, (1, 2), [ones(3)], {"k": ones(3)}], ids=repr)
def test_LST_5_other_values_in_a_stolen_list(other, backend):
    f = minidynamo.compile(lambda ls: (ls[0] * 2, ls[1]), backend=backend, steal=("ls",))
    for _ in range(2):
        ls = [ones(3), other]
        doubled, found = f(ls)
        assert doubled.tolist() == [2.0] * 3 and (found is other or found == 2.5) and ls == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_LST_6_a_list_that_grows(backend):
    def mixed(ls, d):
        ls.append(ls[0] * d["k"][1])
        return ls[0] + d["k"][0]

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(mixed, backend=counter)
    for _ in range(2):
        ls = [ones(2), 5, "s"]
        assert f(ls, {"k": [ones(2), 3]}).tolist() == [2.0, 2.0]
        assert ls[1:3] == [5, "s"] and ls[3].tolist() == [3.0, 3.0]
    (gm,) = counter.graphs
    assert len(next(node.args[0] for node in gm.graph.nodes if node.op == "output")) == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steal", [(), ("ls",)])
def test_LST_7_an_unused_element_may_change(steal, backend):
    calls = [lambda: ([ones(3), ones(3)],), lambda: ([ones(3), ones(4, dtype=torch.int64)],)]
    assert same_values(lambda ls: ls[0] + 1, backend, *calls, steal=steal).frame_count == 1


@pytest.mark.parametrize("steal", [(), ("ls",)])
def test_a_length_that_matters_is_compiled_once(steal):
    f = minidynamo.compile(lambda ls: ls[0] + ls[-1], backend="eager", steal=steal)
    for _ in range(2):
        for count in (2, 3):
            assert f([ones(3)] * count).tolist() == [2.0] * 3
    assert f.stats.compiles == 2 and "length of `ls`: expected 2, got 3" in f.why()


@pytest.mark.parametrize("steal", [(), ("ls",)])
def test_bad_lists(steal):
    f = minidynamo.compile(lambda ls: ls[0] + 1, backend="eager", steal=steal)
    f([ones(3)])
    with pytest.raises(IndexError, match="list index out of range"):
        f([])
    assert f([ones(3), 5]).tolist() == [2.0] * 3
    given = [ones(3)]
    f(given)
    if steal:
        with pytest.raises(IndexError, match="list index out of range"):
            f(given)
        with pytest.raises(ArgumentError, match=r"MD111(?s:.*)`ls`(?s:.*)tuple"):
            f((ones(3),))
