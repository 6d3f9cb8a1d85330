"""Owns the collectors of small end-to-end programs: a function, its inputs, and the expected graphs and breaks.

A collector decorates a function, or a class that is a table of functions. Does not compare;
`minidynamo.testing.assert_same_as_eager` does.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from minidynamo.testing import assert_same_as_eager


def vector() -> torch.Tensor:
    return torch.randn(4)


def two_vectors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4), torch.randn(4)


def leaf() -> torch.Tensor:
    return torch.randn(4, requires_grad=True)


def rows_of(table: type) -> list[Callable[..., Any]]:
    """Returns the functions of a class that is a table of programs."""
    return [row for row in vars(table).values() if isinstance(row, types.FunctionType)]


def table(add: Callable[[str, Callable[..., Any]], None], known: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Returns a decorator that adds a function, or each function of a class that is not `known`, by its name."""

    def decorate(decorated: Any) -> Any:
        if not isinstance(decorated, type):
            add(decorated.__name__, decorated)
            return decorated
        for name, row in vars(decorated).items():
            if isinstance(row, types.FunctionType) and not known(row):
                add(name, row)
        return decorated

    return decorate


@dataclass
class Program:
    fn: Callable[..., Any]
    inputs: tuple[Callable[[], Any], ...]
    expected: dict[str, Any]

    def check(self, backend: str = "eager") -> None:
        """Runs twice per input: the second call must hit the version that the first call compiled."""
        assert_same_as_eager(self.fn, *self.inputs, calls=2, **{"backend": backend, **self.expected})


class Programs(list[Any]):
    """A list of pytest parameters; a call returns a decorator that adds a program, or each program of a class.

    A program in a class may have its own decorator, with other inputs or expectations.
    """

    def __call__(
        self, *inputs: Callable[[], Any], graphs: int = 1, breaks: int = 0, **expected: Any
    ) -> Callable[[Any], Any]:
        def add(name: str, fn: Callable[..., Any]) -> None:
            program = Program(fn, inputs or (vector,), {"graphs": graphs, "breaks": breaks, **expected})
            self.append(pytest.param(program, id=name))

        return table(add, lambda fn: any(row.values[0].fn is fn for row in self))

    def test(self, *backends: Any) -> Callable[..., None]:
        """Returns the test of all programs, with each of the `backends`."""

        @pytest.mark.parametrize("program", self)
        @pytest.mark.parametrize("backend", backends or ("eager",))
        def same_as_eager(program: Program, backend: str) -> None:
            program.check(backend)

        return same_as_eager


class Counted(dict[str, tuple[Callable[..., Any], int]]):
    """Programs by name, each with its expected number of compiles; a call returns a decorator, as of `Programs`."""

    def __call__(self, compiles: int) -> Callable[[Any], Any]:
        def add(name: str, program: Callable[..., Any]) -> None:
            self[name] = (program, compiles)

        return table(add, lambda fn: any(program is fn for program, _ in self.values()))
