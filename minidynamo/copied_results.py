"""Owns the copies that stand, while autograd is traced, for results of the user's functions that share memory.

A result of a `torch.autograd.Function` may be a view of an argument, or the argument itself. Autograd's graphs make
tensors that share memory from one another, and would leave out the user's backward, so there it is a copy: a view of
one, if the result is one, and as often written. Autograd refuses it the writes that it refuses the result. Whether
somebody could tell is for whoever traces to find out, from what is noted here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo import compat


@dataclass(frozen=True)
class CopiedResult:
    """A result with the copy that took its place, and how often torch counted each as written by then."""

    result: torch.Tensor
    copy: torch.Tensor
    writes: tuple[int | None, int | None]

    @property
    def is_written(self) -> bool:
        """Whether either has been written to since."""
        return self.writes != (compat.version_of(self.result), compat.version_of(self.copy))


_noted: ContextVar[list[CopiedResult] | None] = ContextVar("copied_results", default=None)


@contextlib.contextmanager
def noting_copies() -> Iterator[list[CopiedResult]]:
    """Inside, each copy is added to the list."""
    copies: list[CopiedResult] = []
    token = _noted.set(copies)
    try:
        yield copies
    finally:
        _noted.reset(token)


def of_its_own(result: Any, args: tuple[Any, ...]) -> Any:
    """A result that does not share memory with an argument, unless it is the argument, written to."""
    if not isinstance(result, torch.Tensor) or any(result is arg for arg in args):
        return result
    if compat.memory_of(result) not in [compat.memory_of(arg) for arg in args if isinstance(arg, torch.Tensor)]:
        return result
    copy = result.clone()
    writes = compat.version_of(result)
    if writes is not None and not copy.is_inference():
        compat.set_versions([copy], [writes])
    creation = compat.creation_of(result)
    if creation is not None:
        copy = copy.view_as(copy)
        compat.set_creation(copy, creation)
    noted = _noted.get()
    if noted is not None:
        noted.append(CopiedResult(result, copy, (writes, compat.version_of(copy))))
    return copy
