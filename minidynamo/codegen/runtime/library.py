"""Owns loading: from the C++ source of a whole graph to a Python builtin per kernel.

The printers write kernels. A library includes `launch.h`, and depends on no Python version and no torch header. Its
entry points are plain functions with CPython's fast calling convention. They become builtins here, so that a single
Python call launches a kernel.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from minidynamo import compat
from minidynamo.codegen.runtime import disk_cache
from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.errors import Diagnostic, KernelBuildError

Entry = Callable[..., None]

# The pointers in the record `Threading` of launch.h, in order. The last is at::get_num_threads().
THREADING = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "_ZN2at15get_num_threadsEv")

METH_FASTCALL = 0x80


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_Threading = ctypes.c_void_p * len(THREADING)
# The record `Tensors` of launch.h: a function, an offset, two classes.
_Tensors = ctypes.c_void_p * 4

# The Threading records of all loaded libraries, which are never unloaded.
_loaded: list[Any] = []
# Not empty in a forked process: the OpenMP threads of the parent do not exist here, and new threads cannot be started,
# so kernels run on a single thread.
_forked: list[bool] = []


def _after_fork() -> None:
    _forked.append(True)
    for threading in _loaded:
        threading[:] = [None] * len(THREADING)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_new_builtin = ctypes.pythonapi.PyCFunction_NewEx
_new_builtin.restype = ctypes.py_object
_new_builtin.argtypes = (ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p)


def load(source: str, entries: Sequence[str]) -> dict[str, Entry]:
    """Builds the C++ `source` (or finds it in the cache) and returns its functions `entries` by name.

    An entry takes tensors, then numbers, and returns None. Raises ToolchainMissing without a compiler, and
    KernelBuildError if the compiler rejects the source or the library does not load.
    """
    library = load_library(source)
    return {name: entry(library, name) for name in entries}


def load_library(source: str) -> ctypes.PyDLL:
    """Returns the library of the C++ `source`, built or found in the cache, and ready to run. Raises like `load`."""
    library = _open(source)
    threading = _Threading.in_dll(library, "minidynamo_threading")
    threading[:] = [None] * len(THREADING) if _forked else list(_threading_addresses())
    _loaded.append(threading)
    _Tensors.in_dll(library, "minidynamo_tensors")[:] = _tensors()
    return library


def without_comments(source: str) -> str:
    """Returns `source` without its comment lines: the positions of the user's lines do not change the library."""
    return re.sub(r"^[ \t]*//.*\n", "", source, flags=re.MULTILINE)


def _open(source: str) -> ctypes.PyDLL:
    toolchain = find_toolchain()
    key_text = f"{toolchain.describe()}\n{without_comments(source)}"

    def build(output: Path) -> None:
        written = output.with_name("kernels.cpp")
        written.write_text(source, encoding="utf-8")
        toolchain.build(written, output)

    # A library that does not load may be damaged, or be removed by another process: it is rebuilt once, elsewhere.
    for fetch in (functools.partial(disk_cache.fetch, key_text), disk_cache.build_temporary):
        path = fetch(build)
        try:
            return ctypes.PyDLL(str(path))
        except OSError as error:
            disk_cache.discard(path)
            reason = str(error)
    raise KernelBuildError(
        Diagnostic(
            "MD503",
            "a kernel library does not load",
            why=reason,
            fix=f"Build with another compiler than {toolchain.command}.",
        )
    )


@functools.cache
def _threading_addresses() -> tuple[int | None, ...]:
    """Returns the addresses of THREADING in the libraries that torch uses; all None if any is missing."""
    # A symbol lookup in torch's Python extension searches the libraries that it was linked against, in order. This
    # finds the OpenMP runtime of torch's own kernels, even if another package has loaded a second runtime.
    torch_library = ctypes.CDLL(compat.NATIVE_LIBRARY)
    try:
        return tuple(ctypes.cast(getattr(torch_library, name), ctypes.c_void_p).value for name in THREADING)
    except AttributeError:
        return (None,) * len(THREADING)


@functools.cache
def _tensors() -> list[ctypes.c_void_p | int | None]:
    """Returns the items of the record `Tensors`; all None if torch or Python store tensors in another way."""
    offset = compat.offset_of_tensor()
    function = getattr(ctypes.CDLL(compat.NATIVE_LIBRARY), "aoti_torch_get_data_ptr", None)
    if offset is None or function is None:
        return [None] * 4
    address = ctypes.cast(function, ctypes.c_void_p).value
    return [address, offset, id(torch.Tensor), id(torch.nn.Parameter)]


def entry(library: ctypes.PyDLL, name: str, *bound: object) -> Entry:
    """Returns the function `name` of a library as a builtin; the first items of its `self` are `bound`."""
    function = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    definition = _MethodDef(name.encode(), function, METH_FASTCALL, None)
    # As an item of `self`, the definition lives exactly as long as the builtin that points to it.
    builtin: Any = _new_builtin(ctypes.byref(definition), (*bound, definition), None)
    result: Entry = builtin
    return result
