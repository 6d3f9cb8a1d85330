"""Owns the collector of small end-to-end programs: a function, its inputs, and the expected graphs and breaks.

Does not compare; `minidynamo.testing.assert_same_as_eager` does.
"""

from __future__ import annotations

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


@dataclass
class Program:
    fn: Callable[..., Any]
    inputs: tuple[Callable[[], Any], ...]
    expected: dict[str, Any]

    def check(self) -> None:
        """Runs twice per input: the second call must hit the version that the first call compiled."""
        assert_same_as_eager(self.fn, *self.inputs, calls=2, **self.expected)


class Programs(list[Any]):
    """A list of pytest parameters; a call returns a decorator that adds a program."""

    def __call__(
        self, *inputs: Callable[[], Any], graphs: int = 1, breaks: int = 0, **expected: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            program = Program(fn, inputs or (vector,), {"graphs": graphs, "breaks": breaks, **expected})
            self.append(pytest.param(program, id=fn.__name__))
            return fn

        return add


class Counted(dict[str, tuple[Callable[..., Any], int]]):
    """Programs by name, each with its expected number of compiles; a call returns a decorator that adds a program."""

    def __call__(self, compiles: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(program: Callable[..., Any]) -> Callable[..., Any]:
            self[program.__name__] = (program, compiles)
            return program

        return add
