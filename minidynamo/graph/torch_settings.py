"""Owns the interpreter-wide settings of torch that a captured program may change: the calls, and how to undo them.

A switch is a graph node whose call changes a setting: grad mode, autocast, the default dtype, the device of new
tensors, the attention backends. The tracer decides which calls of a program are switches.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.records import record

Call = tuple[Callable[..., Any], tuple[Any, ...]]


@record(frozen=True)
class Settings:
    """The settings of this thread at one moment."""

    grad_enabled: bool
    #: (enabled, dtype) of each of `compat.AUTOCAST_DEVICES`
    autocast: tuple[tuple[bool, torch.dtype], ...]
    autocast_cache: bool
    autocast_nesting: int
    default_dtype: torch.dtype
    #: the mode of each block of inference mode that switches have opened, outermost first
    inference: tuple[bool, ...]
    #: the device of each open `torch.device` context, outermost first
    devices: tuple[torch.device, ...]
    #: whether each backend in `compat.ATTENTION` is allowed
    attention: tuple[bool, ...]


def settings() -> Settings:
    """Reads the present settings."""
    torch.autocast_increment_nesting()
    return Settings(
        torch.is_grad_enabled(),
        tuple(
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in compat.AUTOCAST_DEVICES
        ),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
        torch.get_default_dtype(),
        tuple(mode for mode, _ in _inference_blocks()),
        compat.open_devices(),
        allowed_attention(),
    )


def leave_autocast() -> None:
    """Leaves a block of autocast: outside of all blocks, autocast's cache of converted weights is emptied."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


def enter_device(device: torch.device) -> None:
    """Makes `device` the default of new tensors, inside the open device contexts."""
    compat.enter_device(device)


def leave_device() -> None:
    """Leaves the innermost device context."""
    compat.leave_device()


def allowed_attention() -> tuple[bool, ...]:
    """Returns whether each backend in `compat.ATTENTION` is allowed."""
    return tuple([is_allowed() for is_allowed, _ in compat.ATTENTION.values()])


def allow_attention(name: str, allowed: bool) -> None:
    """Allows or forbids a backend in `compat.ATTENTION`."""
    compat.ATTENTION[name][1](allowed)


class _OpenBlocks(threading.local):
    inference: list[tuple[bool, Any]] | None = None


_open = _OpenBlocks()


def _inference_blocks() -> list[tuple[bool, Any]]:
    if _open.inference is None:
        _open.inference = []
    return _open.inference


def enter_inference_mode(enabled: bool) -> None:
    """Opens a block of inference mode."""
    block = compat.InferenceMode(enabled)
    block.__enter__()
    _inference_blocks().append((enabled, block))


def leave_inference_mode() -> None:
    """Leaves the innermost block of inference mode that a switch has opened."""
    _, block = _inference_blocks().pop()
    block.__exit__(None, None, None)


# Every function that may be a switch in a graph.
SWITCHES: tuple[Callable[..., Any], ...] = (
    compat.set_grad_enabled,
    compat.set_default_dtype,
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting,
    leave_autocast,
    enter_inference_mode,
    leave_inference_mode,
    enter_device,
    leave_device,
    allow_attention,
)


def is_switch(function: object) -> bool:
    """Returns whether the function only changes a setting."""
    return any(function is switch for switch in SWITCHES)


def switches_inference(function: object) -> bool:
    """Returns whether the function opens or leaves inference mode, which new tensors record."""
    return function is enter_inference_mode or function is leave_inference_mode


def switches_between(wanted: Settings, now: Settings) -> list[Call]:
    """Lists the switches that change `now` to `wanted`. Autocast's cache is kept: a block may continue."""
    return [*_inference(wanted, now), *_autocast(wanted, now), *_devices(wanted, now), *_plain(wanted, now)]


def _plain(wanted: Settings, now: Settings) -> Iterator[Call]:
    if wanted.default_dtype is not now.default_dtype:
        yield compat.set_default_dtype, (wanted.default_dtype,)
    for name, allowed, allowed_now in zip(compat.ATTENTION, wanted.attention, now.attention):
        if allowed != allowed_now:
            yield allow_attention, (name, allowed)
    # Inference mode has a grad mode of its own.
    if wanted.grad_enabled != now.grad_enabled or wanted.inference != now.inference:
        yield compat.set_grad_enabled, (wanted.grad_enabled,)


def _inference(wanted: Settings, now: Settings) -> Iterator[Call]:
    same = _common(wanted.inference, now.inference)
    yield from [(leave_inference_mode, ())] * (len(now.inference) - same)
    yield from ((enter_inference_mode, (enabled,)) for enabled in wanted.inference[same:])


def _common(one: tuple[object, ...], other: tuple[object, ...]) -> int:
    """Returns the length of the common prefix of two tuples."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _autocast(wanted: Settings, now: Settings) -> Iterator[Call]:
    for device, (enabled, dtype), (enabled_now, dtype_now) in zip(
        compat.AUTOCAST_DEVICES, wanted.autocast, now.autocast
    ):
        if enabled != enabled_now:
            yield torch.set_autocast_enabled, (device, enabled)
        if dtype is not dtype_now:
            yield torch.set_autocast_dtype, (device, dtype)
    if wanted.autocast_cache != now.autocast_cache:
        yield torch.set_autocast_cache_enabled, (wanted.autocast_cache,)
    further = wanted.autocast_nesting - now.autocast_nesting
    yield from [(torch.autocast_increment_nesting, ())] * further
    yield from [(torch.autocast_decrement_nesting, ())] * -further


def _devices(wanted: Settings, now: Settings) -> Iterator[Call]:
    same = _common(wanted.devices, now.devices)
    yield from [(leave_device, ())] * (len(now.devices) - same)
    yield from ((enter_device, (device,)) for device in wanted.devices[same:])


def restore(wanted: Settings) -> None:
    """Restores earlier settings after an error."""
    for function, arguments in switches_between(wanted, settings()):
        function(*arguments)
    if wanted.autocast_nesting == 0:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restores the settings after the block. An enclosing block of autocast keeps its cache."""
    before = settings()
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        restore(before)
