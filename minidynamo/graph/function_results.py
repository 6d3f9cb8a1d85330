"""Owns the copies that replace results of user functions that share memory, while autograd is traced.

A result of a `torch.autograd.Function` may be a view of an argument, or the argument itself. Autograd's graph would
connect tensors that share memory directly, and skip the user's backward. So tracing replaces the result by a copy with
the same version; if the result is a view, by the same view of a copy of its base. Autograd refuses the same writes to
the copy as to the result. The tracer must check, from the copies recorded here, whether the program could see a
difference.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.core.records import record


@record(frozen=True)
class CopiedResult:
    """A result and its copy."""

    result: torch.Tensor
    copy: torch.Tensor
    #: the versions of the result and of the copy, at the time of the copy
    writes: tuple[int | None, int | None]
    #: the node of the function's call, if known
    call: fx.Node | None = None

    @property
    def has_equal_strides(self) -> bool:
        """Returns whether the strides are equal: the copy of a result with overlapping elements has no overlaps."""
        return self.result.stride() == self.copy.stride()

    @property
    def is_written(self) -> bool:
        """Returns whether the result or the copy has been written since."""
        return self.writes != (compat.version_of(self.result), compat.version_of(self.copy))


_Recording = tuple[list[CopiedResult], Callable[[], fx.Node | None]]
_recording: ContextVar[_Recording | None] = ContextVar("copied_results", default=None)


@contextlib.contextmanager
def recording_copies(running: Callable[[], fx.Node | None] = lambda: None) -> Iterator[list[CopiedResult]]:
    """Appends each copy made inside the block to the list; `running` returns the node that is running."""
    copies: list[CopiedResult] = []
    token = _recording.set((copies, running))
    try:
        yield copies
    finally:
        _recording.reset(token)


def unaliased_result(result: Any, args: tuple[Any, ...]) -> Any:
    """Returns a copy of a result that shares memory with an argument, and any other result itself. An argument that the
    function returns, after a write, is not copied."""
    if not isinstance(result, torch.Tensor) or any(result is arg for arg in args):
        return result
    if compat.memory_of(result) not in [compat.memory_of(arg) for arg in args if isinstance(arg, torch.Tensor)]:
        return result
    whole, view = _copied(result)
    writes = compat.version_of(result)
    if writes is not None and compat.version_of(whole) is not None:
        # Before views exist, whose autograd nodes a new version would invalidate.
        compat.set_versions([whole], [writes])
    copy = view(whole)
    recording = _recording.get()
    if recording is not None:
        copies, running = recording
        copies.append(CopiedResult(result, copy, (writes, compat.version_of(copy)), running()))
    return copy


def _copied(result: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Returns a copy of the memory of a result, and the function that makes the replacement of the result from it."""
    creation, base = compat.creation_of(result), result._base
    if creation is None or base is None:
        return result.clone(), lambda whole: whole
    replay: Callable[[torch.Tensor], torch.Tensor] = functools.partial(compat.replay_view, result)
    if any(compat.is_sure(s == 0) and compat.is_sure(n > 1) for n, s in zip(result.shape, result.stride())):
        whole = result.clone()  # a view is unnecessary: autograd refuses writes to overlapping elements
        replay = lambda whole: whole.view_as(whole)  # noqa: E731
    else:
        whole = base.detach().clone()
        replay(whole).copy_(result)

    def view(whole: torch.Tensor) -> torch.Tensor:
        view_of_copy = replay(whole)
        compat.set_creation(view_of_copy, creation)
        return view_of_copy

    return whole, view
