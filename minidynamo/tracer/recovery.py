"""Owns what residual programs call around a graph that may raise: arguments held for a second run, and given back.

Whether a program recovers at all is decided in `residual.py`.
"""

from __future__ import annotations

import random
import weakref
from typing import Any

import torch

from minidynamo import artifacts, compat


class HeldTensor(weakref.ref[torch.Tensor]):
    """A tensor argument, in case its frame has to run again; it dies when it would in the frame as written."""


def weakly_held(value: Any) -> Any:
    """An argument that the frame may give up before its end: tensors weakly, everything else as it is."""
    return HeldTensor(value) if isinstance(value, torch.Tensor) else value


Versions = list[tuple[HeldTensor, int | None]]
RandomStates = list[tuple[torch.Generator, torch.Generator]]
DrawnStates = list[tuple[random.Random, tuple[Any, ...]]]


def random_states() -> RandomStates:
    """Torch's own generators of random numbers, each with a copy, which is no tensor and takes half as much as one."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.clone_state()) for generator in (torch.default_generator, *on_gpus)]


def states_of(*generators: random.Random) -> DrawnStates:
    """The states of generators of Python's, of about 20 KB each."""
    return [(generator, generator.getstate()) for generator in generators]


def versions_of(args: list[Any]) -> Versions:
    """How often each tensor that a graph is given has been written to; None where torch does not count."""
    tensors = [t for arg in args for t in (arg if isinstance(arg, list) else [arg]) if isinstance(t, torch.Tensor)]
    return [(HeldTensor(tensor), None if tensor.is_inference() else tensor._version) for tensor in tensors]


def explain(error: BaseException, lost: str = "") -> None:
    """Note on an error of the graph which lines of the program it comes from, and what is `lost`."""
    lines = artifacts.users_lines(error)
    for note in ["\n  ".join(["Raised while computing", *lines])] * bool(lines) + [lost] * bool(lost):
        error.add_note(note)


def revive(
    error: BaseException,
    held: list[Any],
    lost: str = "",
    versions: Versions = [],  # noqa: B006
    random: RandomStates = [],  # noqa: B006
    drawn: DrawnStates = [],  # noqa: B006
) -> list[Any]:
    """The arguments again, and the generators as they were. When an argument is gone or a tensor has been written to,
    raises `error`, noting what is `lost`."""
    values = [value() if isinstance(value, HeldTensor) else value for value in held]
    reason = ""
    if any(value is None and isinstance(was, HeldTensor) for value, was in zip(values, held)):
        reason = "an argument has already been freed"
    if any((tensor := ref()) is None or version is None or tensor._version != version for ref, version in versions):
        reason = "a tensor was written to before"
    if compat.has_saved_tensor_hooks():
        reason = "hooks have seen the tensors that were saved"
    if not reason:
        for generator, before in random:
            generator.set_state(before.get_state())
        for one, state in drawn:
            one.setstate(state)
        return values
    error.add_note(f"minidynamo could not run the function again as written: {reason}.")
    explain(error, lost)
    raise error
