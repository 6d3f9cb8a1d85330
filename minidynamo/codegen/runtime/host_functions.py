"""Owns what host programs call besides kernels, operators and random numbers.

It is all that a host program from the disk cache needs of these; printing one is for `printers/host.py`.
"""

from __future__ import annotations

import functools

import torch

from minidynamo import compat


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """`tensor`, or a copy with `strides` if its own differ in a dimension of more than one element."""
    if all(have == want or n <= 1 for n, have, want in zip(tensor.shape, tensor.stride(), strides)):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


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
