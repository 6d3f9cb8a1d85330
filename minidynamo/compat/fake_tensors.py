"""Owns private names of fake tensors, which have everything but data.

`fake/mode.py` corrects the strides of their operations.
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

# Fake tensors have everything but data, and carry the mode they belong to; the errors state why an operation has no
# fake result.
FakeTensor = torch._subclasses.fake_tensor.FakeTensor
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
DataDependentOutput = torch._subclasses.fake_tensor.DataDependentOutputException
DynamicOutputShape = torch._subclasses.fake_tensor.DynamicOutputShapeException
UnsupportedFakeTensor = torch._subclasses.fake_tensor.UnsupportedFakeTensorException
UnsupportedOperator = torch._subclasses.fake_tensor.UnsupportedOperatorException

_fake_tensor_log = logging.getLogger("torch._subclasses.fake_tensor")


@contextlib.contextmanager
def without_fake_tensor_log() -> typing.Iterator[None]:
    """Disables torch's log of errors of operations on fake tensors: the caller tests whether a call raises, and reports
    the error itself.
    """
    before, _fake_tensor_log.disabled = _fake_tensor_log.disabled, True
    try:
        yield
    finally:
        _fake_tensor_log.disabled = before


def known_constant(fake: torch.Tensor) -> torch.Tensor | None:
    """Returns the real tensor that a fake tensor was made from while tracing, as long as its values are the same."""
    return fake.constant if isinstance(fake, FakeTensor) else None


def forget_constant(fake: torch.Tensor) -> None:
    """Removes the constant value of a fake tensor. torch sets NaN for symbolic numbers that became tensors."""
    if isinstance(fake, FakeTensor):
        fake.constant = None


@functools.cache
def load_fake_tensors() -> None:
    """Imports the dependencies of the first fake mode. The import takes seconds, and keeps all frames below it
    alive.
    """
    _in_thread(FakeTensorMode)


@functools.cache
def load_symbols() -> None:
    """Imports the dependencies of the first symbol, for the same reason."""
    _in_thread(lambda: symbolic().ShapeEnv())


def _in_thread(function: typing.Callable[[], object]) -> None:
    """Runs a function in a thread, without user frames, whose locals would otherwise live until garbage collection."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
