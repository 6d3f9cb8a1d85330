"""Owns random numbers that are drawn twice: by a graph's forward from a state that is kept, and again by its backward.

Which numbers are drawn again, and whether keeping the state pays, is decided in `autograd/partition/rng_replay.py`.
What is drawn once is no business of this file.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from minidynamo import compat

STATE_BYTES = {"cpu": 5056, "cuda": 16}
"""What a generator's state takes, by the types of device whose numbers can be drawn again. It lies on the CPU."""

Operation: TypeAlias = "str | Callable[..., Any]"
"""A random ATen operation by its name, `aten.bernoulli.p`; or a function like it that takes a `generator`."""


def random_state(device: torch.device) -> torch.Tensor:
    """The state of the device's generator now."""
    return _generator_of(device).get_state()


def draw(
    operation: Operation, device: torch.device, state: torch.Tensor, /, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """What `operation` gives when the device's generator is in `state`, and the state behind, which is then in force.

    Another thread may have drawn since the state was read: what is returned follows from `state` all the same.
    """
    made = draw_again(operation, device, state, *args, **kwargs)
    _generator_of(device).set_state(made[-1])
    return made


def draw_again(
    operation: Operation, device: torch.device, state: torch.Tensor, /, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """What `draw` gave for the same `state`. The device's generator stays as it is."""
    function, takes_generator = (operation, True) if callable(operation) else _found(operation)
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
"""What graphs call. Their results are new memory."""


def _results(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def _generator_of(device: torch.device) -> torch.Generator:
    """The generator that operations on the device draw from when they are given none."""
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found


@functools.cache
def _found(name: str) -> tuple[Callable[..., Any], bool]:
    """The operation of this name, and whether it takes a generator; some do by another overload."""
    op = operator.attrgetter(name)(torch.ops)
    if "generator" in _arguments(op):
        return op, True
    packet = op.overloadpacket
    wanted = {*_arguments(op), "generator"}
    others = (getattr(packet, overload) for overload in packet.overloads())
    return (packet, True) if any(_arguments(other) == wanted for other in others) else (op, False)


def _arguments(op: compat.OpOverload) -> set[str]:
    return {argument.name for argument in compat.schema_of(op).arguments}
