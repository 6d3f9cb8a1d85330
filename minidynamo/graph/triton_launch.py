"""Owns what a launch of a user's Triton kernel is in a graph: one operator, which starts it as the program does.

It does not look into kernels: the tracer has found out which tensors one writes to, and what the grid is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.custom_operators import define


@dataclass(frozen=True)
class Tensor:
    """Stands for a tensor among the arguments of a launch: its place among those written, or those only read."""

    written: bool
    position: int


@dataclass(frozen=True, eq=False)
class Launch:
    """`kernel[grid](*args, **kwargs)`, with a `Tensor` in the place of each tensor."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def start(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> None:
        """Run the kernel on these tensors."""

        def given(value: Any) -> Any:
            return (written if value.written else read)[value.position] if isinstance(value, Tensor) else value

        self.kernel[self.grid](*map(given, self.args), **{name: given(value) for name, value in self.kwargs.items()})


# Operators take tensors and numbers; what else belongs to a launch stays here, and the operator gets its number.
_launches: list[Launch] = []
_numbers: dict[object, int] = {}


def number_of(launch: Launch) -> int:
    """The number under which the operator finds a launch; launches that do the same have one number."""
    values = [*launch.args, *launch.kwargs.values()]
    # 1, 1.0 and True are not the same to a kernel, nor are 0.0 and -0.0. What is in the list keeps its identity.
    parts = tuple((type(v), repr(v) if isinstance(v, int | float | str | Tensor) else id(v)) for v in values)
    key = (id(launch.kernel), launch.grid, tuple(launch.kwargs), parts)
    if key not in _numbers:
        _numbers[key] = len(_launches)
        _launches.append(launch)
    return _numbers[key]


def _launch(kernel: str, written: list[torch.Tensor], read: list[torch.Tensor], launch: int) -> None:
    _launches[launch].start(written, read)


def _launch_without_data(kernel: str, written: list[torch.Tensor], read: list[torch.Tensor], launch: int) -> None:
    """Nothing is computed, but it counts as a write: that is how the tracer notices one."""
    compat.increment_version(written)


launch_kernel = define(
    "launch_kernel",
    "(str kernel, Tensor(a!)[] written, Tensor[] read, int launch) -> ()",
    _launch,
    _launch_without_data,
    unseen=True,
)
