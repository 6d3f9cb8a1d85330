"""Owns private names of fake tensors, which have everything but data.

Which strides their operations give is corrected in `fake/mode.py`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import typing

import torch
import torch._subclasses.fake_tensor

from minidynamo.compat.symbols import symbolic

# Fake tensors have everything but data, and carry the mode they belong to; the errors say why an operation has no fake
# result.
FakeTensor = torch._subclasses.fake_tensor.FakeTensor
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
DataDependentOutput = torch._subclasses.fake_tensor.DataDependentOutputException
DynamicOutputShape = torch._subclasses.fake_tensor.DynamicOutputShapeException
UnsupportedFakeTensor = torch._subclasses.fake_tensor.UnsupportedFakeTensorException
UnsupportedOperator = torch._subclasses.fake_tensor.UnsupportedOperatorException

_fake_tensor_log = logging.getLogger("torch._subclasses.fake_tensor")


@contextlib.contextmanager
def without_fake_tensor_log() -> typing.Iterator[None]:
    """Inside, torch logs no traceback for a call on fake tensors that raises, which is how it is found out that one
    would: whoever asks says what that means."""
    before, _fake_tensor_log.disabled = _fake_tensor_log.disabled, True
    try:
        yield
    finally:
        _fake_tensor_log.disabled = before


def constant_behind(fake: torch.Tensor) -> torch.Tensor | None:
    """The real tensor that a fake one was made from while tracing: the fake one knows it while it has its values."""
    return fake.constant if isinstance(fake, FakeTensor) else None


def forget_constant(fake: torch.Tensor) -> None:
    """Let a fake tensor know nothing of its values. Of symbolic numbers that are taken for tensors torch makes NaN."""
    if isinstance(fake, FakeTensor):
        fake.constant = None


@functools.cache
def load_fake_tensors() -> None:
    """Import what the first fake mode imports: that takes seconds, and it keeps every frame below it alive."""
    _in_thread(FakeTensorMode)


@functools.cache
def load_symbols() -> None:
    """Import what the first symbol imports, for the same reason."""
    _in_thread(lambda: symbolic().ShapeEnv())


def _in_thread(function: typing.Callable[[], object]) -> None:
    """Run a function where no frames of the user's are, whose locals would not die before the collector runs."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
