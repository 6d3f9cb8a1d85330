"""Results of `torch.func.vjp`: nodes over one subgraph, and a function that is rebuilt if the program keeps it."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.func import vjp

import minidynamo
from minidynamo.tracer.handlers.vjp import vjp_at
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets


def names(traced):
    return [getattr(target, "__name__", target) for target in targets(traced)]


def test_the_function_is_traced_once():
    def program(x, v):
        y, pull_back = vjp(lambda a: a.sin(), x)
        return y, pull_back(v), pull_back(v + 1)

    traced = capture(program, torch.ones(2), torch.ones(2))
    assert names(traced) == ["vjp", "getitem", "pull_back", "getitem", "add", "pull_back", "getitem"]
    assert sum(node.op == "get_attr" for node in traced.graph.graph.nodes) == 1


def test_parts_without_a_tracer():
    first, pull_back, aux = vjp_at(lambda a: (a * 2, a), (torch.ones(2),), True)
    assert first.tolist() == [2, 2] and aux.tolist() == [1, 1] and pull_back(first)[0].tolist() == [4, 4]


def test_the_gradient_function_is_called_as_torch_calls_it():
    def program(x):
        pull_back = vjp(torch.sin, x)[1]
        return pull_back, pull_back.__qualname__

    def look(function):
        return function.__name__, function.__qualname__, function.__module__, str(inspect.signature(function))

    kept, inside = minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    expected = vjp(torch.sin, torch.ones(2))[1]
    assert look(kept) == look(expected) and inside == expected.__qualname__


def no_tensors(x):
    return vjp(lambda a: x * a, 3)


def random_numbers(x):
    return vjp(lambda a: torch.dropout(a, 0.5, True), x)


def what_is_no_cotangent(x):
    return vjp(torch.sin, x)[1](torch.ones(5))


def cotangents_of_another_kind(x):
    return vjp(torch.sin, x)[1](3)


def something_changes(x):
    seen = []
    return vjp(lambda a: (seen.append(1), a * 2)[1], x), seen


@pytest.mark.parametrize(
    "program", [no_tensors, random_numbers, what_is_no_cotangent, cotangents_of_another_kind, something_changes]
)
def test_what_ends_the_graph(program):
    traced = capture(program, torch.randn(2))
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == "MD207"
