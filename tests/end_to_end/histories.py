"""Owns the comparison of histories: the results of a program, call after call, while its environment changes.

A history is a generator function. It runs once with `compiled` as the identity and once with `minidynamo.compile`, and
must yield equal values: it defines functions, calls, changes state, calls again. Errors of calls are caught with
`attempt` and compared by class and text.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import minidynamo
from minidynamo.observe.comparison import seed_generators
from tests.end_to_end.programs import table

History = Callable[[Callable[..., Any]], Iterator[Any]]


class Histories(list[Any]):
    """A list of pytest parameters; as a decorator, adds a history, or each history of a class."""

    def __call__(self, decorated: Any) -> Any:
        def add(name: str, history: History) -> None:
            self.append(pytest.param(history, id=name))

        return table(add, lambda fn: any(row.values[0] is fn for row in self))(decorated)

    def test(self, *backends: Any) -> Callable[..., None]:
        """Returns the test of all histories, with each of the `backends`; warnings are ignored."""

        @pytest.mark.filterwarnings("ignore")
        @pytest.mark.parametrize("backend", backends or ("eager",))
        @pytest.mark.parametrize("history", self)
        def same_as_eager(history: History, backend: str) -> None:
            compare(history, backend)

        return same_as_eager


def vector() -> torch.Tensor:
    return torch.arange(3.0)


def attempt(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns the result of a call, or its exception."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        return error


def compare(history: History, backend: str) -> None:
    """Checks that compiling changes no yielded value of the history."""

    def run_eagerly(fn: Any = None, **options: Any) -> Any:
        return functools.partial(run_eagerly, **options) if fn is None else fn

    expected = _run(history, run_eagerly)
    actual = _run(history, functools.partial(minidynamo.compile, backend=backend))
    for step, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
        assert found == wanted, f"step {step}: eager gives {wanted}, compiled gives {found}"


def _run(history: History, compiled: Callable[..., Any]) -> list[Any]:
    seed_generators(0)
    gc.disable()  # deaths must not depend on the times of garbage collections
    try:
        return [described(value) for value in history(compiled)]
    finally:
        gc.enable()


def described(value: Any) -> Any:
    """Returns a value as plain data, copied now: later changes do not show."""
    if isinstance(value, torch.Tensor):
        data = value.detach()
        data = data if data.layout is torch.strided else data.to_dense()
        text = "" if data.is_meta else repr(data.tolist())
        stride = value.stride() if value.layout is torch.strided else None
        facts = (type(value).__name__, value.dtype, tuple(value.shape), stride, value.requires_grad, value.is_leaf)
        return "tensor", *facts, text
    if isinstance(value, BaseException):
        return type(value).__name__, str(value)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(item) for item in value]
    if isinstance(value, dict):
        return type(value).__name__, [(described(key), described(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, value))
    if value is None or isinstance(value, (int, float, complex, str, bytes, torch.dtype, torch.device)):
        return type(value).__name__, repr(value)
    return type(value).__name__
