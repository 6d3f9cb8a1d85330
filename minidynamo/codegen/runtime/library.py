"""Owns loading: C++ source of a whole graph in, one Python builtin per kernel out.

It does not write kernels. A library includes `launch.h`, knows no Python version and no torch header; its entry points
are plain functions with CPython's fast calling convention, which become builtins here, so that one Python call
launches one kernel.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minidynamo import compat
from minidynamo.codegen.runtime import disk_cache
from minidynamo.codegen.runtime.toolchain import find_toolchain
from minidynamo.errors import BackendError, Diagnostic

Entry = Callable[..., None]

# What the record `Threading` of launch.h points to, in its order. The last one is at::get_num_threads().
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

# The records of all libraries that were loaded, which stay loaded; and whether this is a forked process, in which the
# threads of OpenMP that the parent has started do not exist, and new ones cannot be had: kernels run on one thread.
_loaded: list[Any] = []
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
    """Build the C++ `source` (or find it built) and return its functions `entries` by name.

    An entry takes the addresses of its buffers as integers (`tensor.data_ptr()`) and returns None. Raises
    ToolchainMissing without a compiler and KernelBuildError when it refuses the source.
    """
    library = opened(source)
    return {name: entry(library, name) for name in entries}


def opened(source: str) -> ctypes.PyDLL:
    """The library of the C++ `source`, built or found built, and ready to run. Raises as `load`."""
    library = _open(source)
    threading = _Threading.in_dll(library, "minidynamo_threading")
    threading[:] = [None] * len(THREADING) if _forked else list(_threading_addresses())
    _loaded.append(threading)
    return library


def without_comments(source: str) -> str:
    """`source` without the lines that are comments: where the user's lines stand changes nothing that is built."""
    return re.sub(r"^[ \t]*//.*\n", "", source, flags=re.MULTILINE)


def _open(source: str) -> ctypes.PyDLL:
    toolchain = find_toolchain()
    key_text = f"{toolchain.describe()}\n{without_comments(source)}"

    def build(output: Path) -> None:
        written = output.with_name("kernels.cpp")
        written.write_text(source)
        toolchain.build(written, output)

    for _ in range(2):  # a stored library that does not load is built again, once
        path = disk_cache.fetch(key_text, build)
        try:
            return ctypes.PyDLL(str(path))
        except OSError as error:
            disk_cache.discard(path)
            reason = str(error)
    raise BackendError(
        Diagnostic(
            "MD503",
            "a kernel library does not load",
            why=reason,
            fix=f"Build with another compiler than {toolchain.command}.",
        )
    )


@functools.cache
def _threading_addresses() -> tuple[int | None, ...]:
    """Addresses of THREADING in the libraries that torch uses; all None when one of them is missing."""
    # Looking a symbol up in torch's Python extension searches what that was linked against, in order: this finds the
    # OpenMP runtime of torch's own kernels, also when another package has loaded a second one.
    torch_library = ctypes.CDLL(compat.NATIVE_LIBRARY)
    try:
        return tuple(ctypes.cast(getattr(torch_library, name), ctypes.c_void_p).value for name in THREADING)
    except AttributeError:
        return (None,) * len(THREADING)


def entry(library: ctypes.PyDLL, name: str, *bound: object) -> Entry:
    """The function `name` of a library as a builtin; what is `bound` to it are the first items of its `self`."""
    function = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    definition = _MethodDef(name.encode(), function, METH_FASTCALL, None)
    # In the builtin's `self` the definition lives exactly as long as the builtin that points to it.
    builtin: Any = _new_builtin(ctypes.byref(definition), (*bound, definition), None)
    made: Entry = builtin
    return made
