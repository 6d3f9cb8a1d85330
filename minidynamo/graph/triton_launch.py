"""Owns the operator of a user's Triton kernel launch in a graph: it launches the kernel as the program does.

Does not inspect kernels: the tracer finds the written tensors and the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.records import record
from minidynamo.graph.custom_operators import define


@record(frozen=True)
class Tensor:
    """Marks the position of a tensor among the arguments of a launch: an index into the written or the read tensors."""

    written: bool
    position: int


@record(frozen=True, eq=False)
class Launch:
    """The launch `kernel[grid](*args, **kwargs)`, with a `Tensor` in place of each tensor."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def start(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> None:
        """Launches the kernel on these tensors."""

        def filled(value: Any) -> Any:
            return (written if value.written else read)[value.position] if isinstance(value, Tensor) else value

        self.kernel[self.grid](*map(filled, self.args), **{name: filled(value) for name, value in self.kwargs.items()})


# An operator takes only tensors and numbers. The rest of a launch is stored here, and the operator takes its number.
_launches: list[Launch] = []
_numbers: dict[object, int] = {}


def number_of(launch: Launch) -> int:
    """Returns the number of a launch; equal launches have the same number."""
    values = [*launch.args, *launch.kwargs.values()]
    # A kernel distinguishes 1, 1.0 and True, and 0.0 from -0.0. Objects in the list stay alive, so their ids stay
    # unique.
    parts = tuple((type(v), repr(v) if isinstance(v, int | float | str | Tensor) else id(v)) for v in values)
    key = (id(launch.kernel), launch.grid, tuple(launch.kwargs), parts)
    if key not in _numbers:
        _numbers[key] = len(_launches)
        _launches.append(launch)
    return _numbers[key]


def _launch(kernel: str, written: list[torch.Tensor], read: list[torch.Tensor], launch: int) -> None:
    _launches[launch].start(written, read)


def _launch_without_data(kernel: str, written: list[torch.Tensor], read: list[torch.Tensor], launch: int) -> None:
    """Counts a write, and computes nothing: the tracer detects writes by versions."""
    compat.increment_version(written)


launch_kernel = define(
    "launch_kernel",
    "(str kernel, Tensor(a!)[] written, Tensor[] read, int launch) -> ()",
    _launch,
    _launch_without_data,
    unseen=True,
)
