"""Owns the modules that run on first use: needed by the first compile, or by a compile without a cached graph.

Lazy modules are imported by plain imports at the top of a file. Import the module itself (`from minidynamo.codegen
import compile_graph`): an imported name would run the module. `minidynamo/__init__.py` imports this file first.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo.core.events import phase
from minidynamo.core.garbage import collections_delayed
from minidynamo.core.locks import ForkSafeLock

LAZY = (
    "minidynamo.autograd.segments",
    "minidynamo.backends.built_in",
    "minidynamo.codegen.compile_graph",
    "minidynamo.codegen.ir.kernel_dedup",
    "minidynamo.codegen.ir.loops",
    "minidynamo.codegen.memory.plan",
    "minidynamo.codegen.memory.report",
    "minidynamo.codegen.printers.cpp",
    "minidynamo.codegen.printers.triton",
    "minidynamo.frontend.captured.tape",
    "minidynamo.frontend.comptime_context",
    "minidynamo.frontend.convert_frame",
    "minidynamo.frontend.sharing",
    "minidynamo.graph.collectives",
    "minidynamo.testing",
)

_lock = ForkSafeLock()
_running: set[str] = set()


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Times imports."""
    with collections_delayed(), phase("imports"):
        yield


class _LazyModule(types.ModuleType):
    """A module that has not run."""

    def __getattr__(self, name: str) -> Any:
        if not _run(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet", name=name, obj=self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _run(self)
        types.ModuleType.__setattr__(self, name, value)  # its class is ModuleType by now

    def __dir__(self) -> list[str]:
        _run(self)
        return list(types.ModuleType.__dir__(self))


def _run(module: types.ModuleType) -> bool:
    """Runs a module unless it has run; returns False during the run in this thread. A failed run is repeated at the
    next use.
    """
    name = module.__name__
    with _lock:
        if type(module) is not _LazyModule:
            return True
        if name in _running:
            return False
        _running.add(name)
        try:
            spec = module.__spec__
            assert spec is not None and spec.loader is not None
            with _importing():
                spec.loader.exec_module(module)
            module.__class__ = types.ModuleType  # type: ignore[assignment]
        finally:
            _running.discard(name)
        return True


@functools.cache
def load_once(load: Callable[[], None]) -> None:
    """Calls `load` once in the process: it imports modules of torch, which takes seconds."""
    with _importing():
        load()


def make_lazy(name: str) -> None:
    """Makes the module `name`, which must not be imported yet, run on first use."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _LazyModule
    sys.modules[name] = module
    package, _, own_name = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own_name, module)


for _name in LAZY:
    make_lazy(_name)
