"""Owns what host programs call besides kernels, operators and random numbers.

It is all that a host program from the disk cache needs of these; printing one is for `printers/host.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from minidynamo import compat

Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def on_gpu(device: torch.device) -> tuple[int, Empty]:
    """The current stream of a GPU, and what makes tensors there of sizes, strides and a dtype."""
    current = torch.cuda.current_device()
    index = current if device.index is None else device.index
    return compat.current_raw_stream(index), compat.empty_strided_cuda if index == current else _empty_on(device)


@functools.cache
def _empty_on(device: torch.device) -> Empty:
    """As `compat.empty_strided_cuda` does it on the current GPU."""
    return lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype, device=device)


def count_as_new(*tensors: torch.Tensor | None) -> None:
    """Forget that torch has written to them; None stands for a gradient that was handed over."""
    counted = [tensor for tensor in tensors if tensor is not None and compat.version_of(tensor) is not None]
    compat.set_versions(counted, [0] * len(counted))


@functools.cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def must_fit(number: float, dtype: torch.dtype) -> None:
    """Raise torch's error for a number that `dtype` does not hold. What lies beyond its limits is for torch to judge:
    infinity, say, and what wraps around."""
    low, high = _limits(dtype)
    if not low <= number <= high:
        torch.full((2,), number, dtype=dtype)
