"""The directives in eager runs, and the marks that the tracer reads.

Their effects on tracing are tested in tests/tracer/handlers/test_directives.py.
"""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

import minidynamo
from minidynamo.core import directives
from minidynamo.core.directives import DISABLED, IN_GRAPH, Dimension, declare, declared, own_mark
from minidynamo.errors import ArgumentError
from minidynamo.testing import CompileCounter


def add_one(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    "Documented."
    return x + n


def test_outside_of_a_compile_they_do_nothing():
    assert minidynamo.is_compiling() is False
    assert minidynamo.graph_break() is None and minidynamo.graph_break("for a reason") is None


@pytest.mark.parametrize(
    "disabled",
    [minidynamo.disable(add_one), minidynamo.disable(add_one, reason="it is short"), minidynamo.disable()(add_one)],
)
def test_disable_returns_a_function_that_looks_the_same(disabled):
    assert disabled is not add_one and disabled.__wrapped__ is add_one and DISABLED not in vars(add_one)
    assert (disabled.__name__, disabled.__doc__) == ("add_one", "Documented.")
    assert inspect.signature(disabled) == inspect.signature(add_one)
    assert disabled(torch.zeros(1), n=2).item() == 2
    assert vars(disabled)[DISABLED]


def test_a_disabled_function_is_a_break_with_its_reason():
    lookup = minidynamo.disable(add_one, reason="it talks to a database")
    counter = CompileCounter()
    compiled = minidynamo.compile(lambda x: lookup(x * 2) * 3, backend=counter)
    assert compiled(torch.ones(1)).item() == 9
    assert (counter.frame_count, counter.op_count) == (2, 2)
    assert "it talks to a database" in compiled.__minidynamo__.breaks[0].render()


def test_a_compiled_function_can_be_disabled_and_the_other_way_round():
    counter = CompileCounter()
    outer = minidynamo.disable(minidynamo.compile(add_one, backend=counter))
    assert outer(torch.ones(1)).item() == 2 and counter.frame_count == 1
    inner = minidynamo.compile(minidynamo.disable(add_one), backend=counter)
    assert inner(torch.ones(1)).item() == 2


def test_marks_are_those_of_the_function_itself():
    @minidynamo.allow_in_graph
    def inner(x):
        return x

    @functools.wraps(inner)
    def around(x):
        return inner(x)

    assert own_mark(inner, IN_GRAPH) is not None
    assert IN_GRAPH in vars(around) and own_mark(around, IN_GRAPH) is None
    assert own_mark(minidynamo.allow_in_graph(around), IN_GRAPH) is not None


def test_allow_in_graph_marks_the_function_itself():
    def scaled(x, factor):
        return x * factor + 1

    assert minidynamo.allow_in_graph(scaled) is scaled and vars(scaled)[IN_GRAPH]
    counter = CompileCounter()
    compiled = minidynamo.compile(lambda x: scaled(x, 2) - 1, backend=counter, fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2
    assert scaled in [node.target for node in counter.graphs[0].graph.nodes]


def test_functions_that_torch_compile_made_run_as_written():
    theirs = torch.compile(add_one, backend="eager")
    kept_out = torch.compiler.disable(add_one)
    for inner in (theirs, kept_out):
        counter = CompileCounter()
        compiled = minidynamo.compile(lambda x, inner=inner: inner(x * 2) * 3, backend=counter)
        assert compiled(torch.ones(1)).item() == 9
        assert (counter.frame_count, counter.op_count) == (2, 2)
        assert "torch.compile" in compiled.__minidynamo__.breaks[0].render()


def subtracted(x):
    return torch.sub(x, 1) + 2 - 1


def test_functions_of_torch_can_be_disallowed(monkeypatch):
    monkeypatch.setattr(directives, "_DISALLOWED", {})
    assert minidynamo.disallow_in_graph(torch.sub) is torch.sub
    compiled = minidynamo.compile(subtracted, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [1, 1]
    assert "MD207" in compiled.breaks() and "It is marked with disallow_in_graph." in compiled.breaks()
    assert compiled.breaks().count("graph break:") == 1  # the operators stay in the graph


@pytest.mark.parametrize(
    ("steer", "says"),
    [
        (
            lambda: minidynamo.disable(torch.nn.Linear(2, 2)),
            "disable got the module Linear(?s:.*)Decorate the function",
        ),
        (lambda: minidynamo.disable(torch.nn.Linear), "disable got the class Linear"),
        (
            lambda: minidynamo.disable("it is noisy"),
            r"disable got str(?s:.*)@minidynamo.disable\(reason='it is noisy'\)",
        ),
        (lambda: minidynamo.allow_in_graph(len), "allow_in_graph got builtin_function_or_method(?s:.*)Wrap it"),
        (lambda: minidynamo.allow_in_graph([len]), "allow_in_graph got list"),
        (
            lambda: minidynamo.disallow_in_graph(subtracted),
            r"got subtracted, which is not a function of torch(?s:.*)minidynamo.disable\(subtracted\)",
        ),
        (lambda: minidynamo.disallow_in_graph(torch.nn.Linear(2, 2)), "disallow_in_graph got Linear"),
        (lambda: minidynamo.on_event("compile"), "on_event got str"),
    ],
)
def test_what_cannot_be_steered_is_refused(steer, says):
    with pytest.raises(ArgumentError, match=f"MD112.*{says}"):
        steer()


def test_static_and_class_methods_can_be_disabled():
    class Tools:
        @minidynamo.disable
        @staticmethod
        def add(x):
            return x + 1

        @minidynamo.disable
        @classmethod
        def named(cls, x):
            return cls.__name__, x

    assert Tools.add(1) == Tools().add(1) == 2 and Tools.named(1) == ("Tools", 1)
    f = minidynamo.compile(lambda x: Tools.add(x) * 2, backend="eager")
    assert f(torch.ones(1)).item() == 4 and "MD2" in f.breaks()


@pytest.mark.parametrize("bounds", [{"min": "a"}, {"max": 2.5}])
def test_bounds_of_a_size_are_whole_numbers(bounds):
    with pytest.raises(ArgumentError, match="MD110 mark_dynamic takes a whole number as"):
        minidynamo.mark_dynamic(torch.ones(3), 0, **bounds)


def test_the_last_declaration_holds() -> None:
    x = torch.zeros(2, 3)
    assert declared(x) == {}
    declare(x, 0, Dimension(True))
    declare(x, 1, Dimension(True, 2, 8))
    declare(x, 0, Dimension(False))
    assert declared(x) == {0: Dimension(False), 1: Dimension(True, 2, 8)}
    assert declared(x.clone()) == {}


def test_what_was_declared_to_torch_holds_too() -> None:
    x = torch.zeros(2, 3)
    x.__dict__["_dynamo_dynamic_indices"] = {1}
    x.__dict__["_dynamo_static_indices"] = {0}
    assert declared(x) == {0: Dimension(False), 1: Dimension(True)}
