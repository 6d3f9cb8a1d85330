"""Owns the cases of the coverage measurement, and the decorator that collects the programs of `corpus`.

Runs nothing and knows no program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Make = Callable[[], Any]
Fn = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A function and makers of its arguments: a tuple, or a single value. Each maker is one call, in this order."""

    name: str
    fn: Fn
    makers: tuple[Make, ...]


def vector() -> torch.Tensor:
    """Returns the argument of most programs."""
    return torch.randn(4)


def matrix() -> torch.Tensor:
    """Returns a batch of three vectors."""
    return torch.randn(3, 4)


def leaf() -> torch.Tensor:
    """Returns a vector that requires a gradient."""
    return torch.randn(4, requires_grad=True)


class Corpus(list[Case]):
    """The programs of one subject; a call returns a decorator that adds a program.

    With a single maker the second call gets different numbers, with two makers the second maker's arguments.
    """

    def __call__(self, *makers: Make) -> Callable[[Fn], Fn]:
        def add(fn: Fn) -> Fn:
            makes = makers or (vector,)
            self.append(Case(fn.__name__, fn, (makes[0], makes[-1])))
            return fn

        return add
