"""Owns the copies that stand, while autograd is traced, for results of the user's functions that share memory.

A result of a `torch.autograd.Function` may be a view of an argument, or the argument itself. Autograd's graphs make
tensors that share memory from one another, and would leave out the user's backward, so there it is a copy, as often
written: if the result is a view, the same view of a copy of its base. Autograd refuses it the writes that it refuses
the result. Whether somebody could tell is for whoever traces to find out, from what is noted here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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
    def is_laid_out_alike(self) -> bool:
        """Whether the elements lie at the same places: the copy of one with several in one place has none of these."""
        return self.result.stride() == self.copy.stride()

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
    whole, view = _copied(result)
    writes = compat.version_of(result)
    if writes is not None and compat.version_of(whole) is not None:
        compat.set_versions([whole], [writes])  # before there are views of it, whose history autograd would make anew
    copy = view(whole)
    noted = _noted.get()
    if noted is not None:
        noted.append(CopiedResult(result, copy, (writes, compat.version_of(copy))))
    return copy


def _copied(result: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """A tensor of its own with the history of a result, and what makes of it what stands for the result."""
    creation, base = compat.creation_of(result), result._base
    if creation is None or base is None:
        return result.clone(), lambda whole: whole
    again: Callable[[torch.Tensor], torch.Tensor] = functools.partial(compat.view_anew, result)
    if any(compat.is_sure(s == 0) and compat.is_sure(n > 1) for n, s in zip(result.shape, result.stride())):
        whole = result.clone()  # since nobody can write to elements that lie in the same memory
        again = lambda whole: whole.view_as(whole)  # noqa: E731
    else:
        whole = base.detach().clone()
        again(whole).copy_(result)

    def view(whole: torch.Tensor) -> torch.Tensor:
        made = again(whole)
        compat.set_creation(made, creation)
        return made

    return whole, view
