"""Owns launching compiled kernels on an NVIDIA GPU by one Python call, which calls the driver.

Kernels are compiled elsewhere; this module gets their handles. Other kernels are left to Triton, whose launches take
several times as long.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minidynamo.codegen.runtime import library
from minidynamo.errors import BackendError

Start = Callable[..., None]

MOST_NUMBERS = 64
"""The most numbers that a launch can pass: the record has a bit for each."""


@functools.cache
def driver() -> int | None:
    """Returns the address of cuLaunchKernel; None without an NVIDIA driver."""
    try:
        return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def starter(
    kernel: Any,
    *,
    rows_per_block: int,
    pointers: int,
    reals: tuple[bool, ...],
    fallback: Start,
    start: int | None = None,
) -> Start | None:
    """Returns a function that launches `kernel`, which Triton has compiled and loaded for addresses that are multiples
    of 16.

    The function takes a stream, the number of rows, the addresses of `pointers` tensors, and a number for each of
    `reals`, which has True for a float; all are passed as int64. For other addresses it calls `fallback` with the same
    arguments. `start` is the address of the driver's function. Returns None if only Triton can launch the kernel.
    """
    start = driver() if start is None else start
    scratch = _scratch(kernel, pointers + len(reals))
    if start is None or scratch is None or len(reals) > MOST_NUMBERS:
        return None
    try:
        threads = kernel.metadata.num_warps * kernel.metadata.target.warp_size
        numbers = (rows_per_block, threads, kernel.metadata.shared, pointers, len(reals), scratch)
        kinds = sum(1 << n for n, is_real in enumerate(reals) if is_real)
        record = struct.pack("PP6qQ", start, kernel.function, *numbers, kinds)
        return library.entry(_library(), "launch", record, fallback, kernel)
    except BackendError:  # no compiler
        return None


@functools.cache
def _library() -> ctypes.PyDLL:
    return library.load_library(Path(__file__).with_name("cuda_launch.cpp").read_text(encoding="utf-8"))


def _scratch(kernel: Any, parameters: int) -> int | None:
    """Returns the number of pointers to Triton's own memory that a kernel takes after its own `parameters`.

    Returns None if the kernel uses this memory, or if its launch needs more than the number of blocks.
    """
    if sum(kind != "constexpr" for kind in kernel.src.signature.values()) != parameters:
        return None  # Triton has made a parameter constant
    metadata = kernel.metadata
    needs_more = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
    if any(getattr(metadata, name, 0) for name in needs_more) or getattr(metadata, "num_ctas", 1) != 1:
        return None
    entry = re.search(r"\.entry\s+\w+\s*\((.*?)\)", kernel.asm.get("ptx", ""), re.DOTALL)
    count = len(re.findall(r"\.param\b", entry[1])) - parameters if entry else -1
    return count if count >= 0 else None
