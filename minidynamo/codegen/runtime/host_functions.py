"""Owns the functions that host programs call, apart from kernels, operators and random numbers.

A host program from the disk cache needs no other functions of minidynamo; `printers/host.py` prints host programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from minidynamo import compat

aten = torch.ops.aten

Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def on_gpu(device: torch.device) -> tuple[int, Empty]:
    """Returns the current stream of a GPU, and a function that allocates tensors there from sizes, strides and a
    dtype."""
    current = torch.cuda.current_device()
    index = current if device.index is None else device.index
    return compat.current_raw_stream(index), compat.empty_strided_cuda if index == current else _empty_on(device)


@functools.cache
def _empty_on(device: torch.device) -> Empty:
    """Returns `compat.empty_strided_cuda` for a GPU that is not the current one."""
    return lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype, device=device)


def _part_writer(view: Any) -> Any:
    """Returns a function that writes `source` into the part of `base` that `view` selects, and returns `base`."""

    def write_part(base: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
        view(base, *where, **named).copy_(source)
        return base

    return write_part


PART_WRITERS = {
    aten.slice_scatter.default: _part_writer(aten.slice.Tensor),
    aten.select_scatter.default: _part_writer(aten.select.int),
    aten.diagonal_scatter.default: _part_writer(aten.diagonal.default),
    aten.as_strided_scatter.default: _part_writer(aten.as_strided.default),
}
"""Operator that writes a part of a copy of its first argument -> function that writes the part of the argument."""


def count_as_new(*tensors: torch.Tensor | None) -> None:
    """Resets the version counters of tensors that torch has written to; None is a gradient that was handed over."""
    counted = [tensor for tensor in tensors if tensor is not None and compat.version_of(tensor) is not None]
    compat.set_versions(counted, [0] * len(counted))


@functools.cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def must_fit(number: float, dtype: torch.dtype) -> None:
    """Raises torch's error for a number that does not fit `dtype`.

    Torch itself decides about numbers beyond the limits of the dtype, such as infinity and numbers that wrap.
    """
    low, high = _limits(dtype)
    if not low <= number <= high:
        torch.full((2,), number, dtype=dtype)
