"""Owns draws that happen twice: in a graph's forward, from a recorded generator state, and again in its backward.

`autograd/partition/rng_replay.py` decides which draws are repeated, and whether recording the state pays. Draws that
happen once do not pass through this file.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from minidynamo import compat

STATE_BYTES = {"cpu": 5056, "cuda": 16}
"""Bytes of a generator's state, per type of device whose draws can be repeated. The state is a CPU tensor."""

Operation: TypeAlias = "str | Callable[..., Any]"
"""A random ATen operation by its name, `aten.bernoulli.p`; or an equivalent function that takes a `generator`."""


def random_state(device: torch.device) -> torch.Tensor:
    """Returns the present state of the device's generator."""
    return _generator_of(device).get_state()


def draw(
    operation: Operation, device: torch.device, state: torch.Tensor, /, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Runs `operation` with the device's generator in `state`; returns the results and the new state, then in force.

    Another thread may have drawn since the state was read; the results follow from `state` anyway.
    """
    drawn = draw_again(operation, device, state, *args, **kwargs)
    _generator_of(device).set_state(drawn[-1])
    return drawn


def draw_again(
    operation: Operation, device: torch.device, state: torch.Tensor, /, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Repeats `draw` for the same `state`. The device's generator does not change."""
    function, takes_generator = (operation, True) if callable(operation) else _with_generator(operation)
    if takes_generator:
        own = torch.Generator(device).set_state(state)
        return (*_results(function(*args, **kwargs, generator=own)), own.get_state())
    shared = _generator_of(device)
    before = shared.get_state()
    shared.set_state(state)
    try:
        return (*_results(function(*args, **kwargs)), shared.get_state())
    finally:
        shared.set_state(before)


FUNCTIONS = (random_state, draw, draw_again)
"""The functions that graphs call. Their results are new memory."""


def _results(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _generator_of(device: torch.device) -> torch.Generator:
    """Returns the default generator of operations on the device."""
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found


@functools.cache
def _with_generator(name: str) -> tuple[Callable[..., Any], bool]:
    """Returns the named operation, and whether it takes a generator; for some, another overload does."""
    op = operator.attrgetter(name)(torch.ops)
    if "generator" in _arguments(op):
        return op, True
    packet = op.overloadpacket
    wanted = {*_arguments(op), "generator"}
    others = (getattr(packet, overload) for overload in packet.overloads())
    return (packet, True) if any(_arguments(other) == wanted for other in others) else (op, False)


def _arguments(op: compat.OpOverload) -> set[str]:
    return {argument.name for argument in compat.schema_of(op).arguments}
