"""Tests of minidynamo/tracer/handlers/new_classes.py: classes that a function creates in each call."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minidynamo
from minidynamo.testing import assert_same_as_eager

KEPT: list[Any] = []


def statement(x: Tensor) -> Tensor:
    class State:
        """A state."""

        scale = 2

        def __init__(self, value: Tensor, more: int = 3) -> None:
            self.value = value
            self.more = more

        @property
        def twice(self) -> Tensor:
            return self.value * self.scale

        @staticmethod
        def moved(value: Tensor) -> Tensor:
            return value + 1

        @classmethod
        def named(cls) -> int:
            return len(cls.__name__)

    class Child(tuple):  # type: ignore[type-arg]
        __slots__ = ()

    state = State(x + 1)
    return State.moved(state.twice) * state.more * State.named() + Child((x, x))[1]


def fields(x: Tensor) -> Tensor:
    Out = collections.namedtuple("Out", "a b", defaults=(3,))
    out = Out(x + 1)._replace(b=x * 2)
    a, b = out
    return a * out.b + b + len(Out._fields)


def nested(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        class Box:
            def __init__(self, y: Tensor) -> None:
                self.y = y

        return Box(y).y * 2

    return inner(x) + inner(x + 1)


@pytest.mark.parametrize("function", [statement, fields, nested])
def test_a_class_made_in_each_call_is_captured_once(function: Callable[[Tensor], Tensor]) -> None:
    compiled = minidynamo.compile(function, backend="eager", fullgraph=True)
    for call in range(5):
        x = torch.full((3,), float(call))
        assert torch.equal(compiled(x), function(x))
    assert compiled.stats.compiles == 1


def returned_instance(x: Tensor) -> Any:
    Out = collections.namedtuple("Out", ["a", "b"])
    return Out(x + 1, x * 2)


def returned_object(x: Tensor) -> Any:
    class State:
        def __init__(self, value: Tensor) -> None:
            self.value = value

        def twice(self) -> Tensor:
            return self.value * 2

    return State(x + 1), State


@pytest.mark.parametrize("function", [returned_instance, returned_object])
def test_a_class_that_is_kept_is_a_new_one_in_each_call(function: Callable[[Tensor], Any]) -> None:
    compiled = minidynamo.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(3)
    first, second = compiled(x), compiled(x)
    assert compiled.stats.compiles == 1
    if function is returned_instance:
        assert type(first) is not type(second)
        assert (type(first).__name__, type(first).__module__) == ("Out", __name__)
        assert repr(first) == repr(function(x))
    else:
        (state, cls), (_, other) = first, second
        assert type(state) is cls and cls is not other
        assert torch.equal(state.twice(), (x + 1) * 2)
        assert (cls.__qualname__, cls.__module__) == ("returned_object.<locals>.State", __name__)


def keeps_a_method(x: Tensor) -> Tensor:
    class State:
        def twice(self) -> int:
            return 2

    KEPT.append(State().twice)
    return x * 2


def changes_the_class(x: Tensor) -> Any:
    class State:
        pass

    State.count = 3  # type: ignore[attr-defined]
    return State(), x * State.count  # type: ignore[attr-defined]


def test_a_method_that_is_kept_belongs_to_a_class_of_this_call() -> None:
    compiled = minidynamo.compile(keeps_a_method, backend="eager")
    KEPT.clear()
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert [method() for method in KEPT] == [2, 2]
    assert type(KEPT[0].__self__) is not type(KEPT[1].__self__)
    assert KEPT[0].__func__ is vars(type(KEPT[0].__self__))["twice"]
    assert "State" in str(compiled.explain())


def test_a_class_that_is_changed_is_changed_in_this_call_alone() -> None:
    compiled = minidynamo.compile(changes_the_class, backend="eager")
    (first, x), (second, _) = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert torch.equal(x, torch.full((2,), 3.0))
    assert (type(first).count, type(second).count) == (3, 3)
    assert type(first) is not type(second)


def reads_the_function(x: Tensor) -> Tensor:
    class State:
        def of(self, y: Tensor) -> Tensor:
            return y + x

    return State().of(x)


class _Meta(type):
    pass


def of_another_metaclass(x: Tensor) -> Tensor:
    class State(metaclass=_Meta):
        value = 2

    return x * State.value


def runs_code(x: Tensor) -> Tensor:
    class State:
        value = max(1, 2)

    return x * State.value


@pytest.mark.parametrize("function", [reads_the_function, of_another_metaclass, runs_code])
def test_other_class_statements_break_the_graph(function: Callable[[Tensor], Tensor]) -> None:
    assert_same_as_eager(function, lambda: torch.ones(3), backend="eager")
    compiled = minidynamo.compile(function, backend="eager")
    compiled(torch.ones(3))
    assert "MD233" in str(compiled.explain())


def test_wrong_fields_raise_as_in_python() -> None:
    def wrong(x: Tensor) -> Tensor:
        try:
            collections.namedtuple("Out", "a a")
        except ValueError as error:
            return x * len(str(error))
        return x

    assert_same_as_eager(wrong, lambda: torch.ones(3), backend="eager")
