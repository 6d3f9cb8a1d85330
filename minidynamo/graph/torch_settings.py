"""Owns the interpreter-wide settings of torch that a captured program may change: what changes one, how to undo it.

A switch is a call that changes such a setting and is a node in the graph: grad mode, autocast, the default dtype, the
device of new tensors, what attention may be computed by. It does not decide which calls of a program are switches of
its own; the tracer does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo import compat

Call = tuple[Callable[..., Any], tuple[Any, ...]]

AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")


@dataclass(frozen=True)
class Settings:
    """The settings of this thread at one moment."""

    grad_enabled: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]  # for each device that has it
    autocast_cache: bool
    autocast_nesting: int
    default_dtype: torch.dtype
    inference: tuple[bool, ...]  # of each block of inference mode that switches have opened
    devices: tuple[torch.device, ...]  # of each `torch.device` context that is open, the outermost first
    attention: tuple[bool, ...]  # whether each of `compat.ATTENTION` may be taken


def settings() -> Settings:
    """What is in force now."""
    torch.autocast_increment_nesting()
    return Settings(
        torch.is_grad_enabled(),
        tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
        torch.get_default_dtype(),
        tuple(mode for mode, _ in _inference_blocks()),
        compat.open_devices(),
        allowed_attention(),
    )


def leave_autocast() -> None:
    """Leave a block of autocast: outside of all blocks its cache of converted weights is emptied."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


def enter_device(device: torch.device) -> None:
    """Make new tensors on `device`, inside of the device contexts that are open."""
    compat.enter_device(device)


def leave_device() -> None:
    """Leave the innermost device context."""
    compat.leave_device()


def allowed_attention() -> tuple[bool, ...]:
    """Whether attention may be computed by each of `compat.ATTENTION`."""
    return tuple([is_allowed() for is_allowed, _ in compat.ATTENTION.values()])


def allow_attention(name: str, allowed: bool) -> None:
    """Say whether attention may be computed by this one of `compat.ATTENTION`."""
    compat.ATTENTION[name][1](allowed)


class _OpenBlocks(threading.local):
    inference: list[tuple[bool, Any]] | None = None


_open = _OpenBlocks()


def _inference_blocks() -> list[tuple[bool, Any]]:
    if _open.inference is None:
        _open.inference = []
    return _open.inference


def enter_inference_mode(enabled: bool) -> None:
    """Open a block of inference mode."""
    block = compat.InferenceMode(enabled)
    block.__enter__()
    _inference_blocks().append((enabled, block))


def leave_inference_mode() -> None:
    """Leave the innermost block that a switch has opened."""
    _, block = _inference_blocks().pop()
    block.__exit__(None, None, None)


# Every call that may be a switch in a graph.
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
    """Whether calling this changes a setting, and nothing else."""
    return any(function is switch for switch in SWITCHES)


def switches_inference(function: object) -> bool:
    """Whether it opens or leaves a block of inference mode, of which each tensor made in it remembers that it was."""
    return function is enter_inference_mode or function is leave_inference_mode


def way_to(wanted: Settings, now: Settings) -> list[Call]:
    """The switches that lead from one state to another. The cache of autocast is left alone: a block may go on."""
    return [*_inference(wanted, now), *_autocast(wanted, now), *_devices(wanted, now), *_plain(wanted, now)]


def _plain(wanted: Settings, now: Settings) -> Iterator[Call]:
    if wanted.default_dtype is not now.default_dtype:
        yield compat.set_default_dtype, (wanted.default_dtype,)
    for name, allowed, allowed_now in zip(compat.ATTENTION, wanted.attention, now.attention):
        if allowed != allowed_now:
            yield allow_attention, (name, allowed)
    if wanted.grad_enabled != now.grad_enabled or wanted.inference != now.inference:  # which has its own
        yield compat.set_grad_enabled, (wanted.grad_enabled,)


def _inference(wanted: Settings, now: Settings) -> Iterator[Call]:
    same = _common(wanted.inference, now.inference)
    yield from [(leave_inference_mode, ())] * (len(now.inference) - same)
    yield from ((enter_inference_mode, (enabled,)) for enabled in wanted.inference[same:])


def _common(one: tuple[object, ...], other: tuple[object, ...]) -> int:
    """How many items two tuples have in common at the beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _autocast(wanted: Settings, now: Settings) -> Iterator[Call]:
    for device, (enabled, dtype), (enabled_now, dtype_now) in zip(AUTOCAST_DEVICES, wanted.autocast, now.autocast):
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
    """Bring back the settings of an earlier moment, when what changed them is given up."""
    for function, arguments in way_to(wanted, settings()):
        function(*arguments)
    if wanted.autocast_nesting == 0:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Whatever is switched inside is switched back. A block of autocast that is open around it keeps its cache."""
    before = settings()
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        restore(before)
