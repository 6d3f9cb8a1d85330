"""Owns which modules run only when something in them is first used: what a process needs that compiles, and one that
finds its graphs in the cache does not.

They are imported like all others, by plain imports at the top of a file, and it matters only that it is the module that
is imported (`from minidynamo.codegen import compile_graph`): taking a name from one runs it. `minidynamo/__init__.py`
imports this file first.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

from minidynamo.core.locks import ForkSafeLock

DEFERRED = (
    "minidynamo.testing",
    "minidynamo.codegen.compile_graph",
    "minidynamo.codegen.ir.kernel_dedup",
    "minidynamo.codegen.ir.loops",
    "minidynamo.codegen.memory.report",
    "minidynamo.codegen.printers.cpp",
    "minidynamo.codegen.printers.triton",
)

_lock = ForkSafeLock()
_running: set[str] = set()


class _Deferred(types.ModuleType):
    """A module that has not run."""

    def __getattr__(self, name: str) -> Any:
        if not _run(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet", name=name, obj=self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _run(self)
        types.ModuleType.__setattr__(self, name, value)  # whose class it is by now

    def __dir__(self) -> list[str]:
        _run(self)
        return list(types.ModuleType.__dir__(self))


def _run(module: types.ModuleType) -> bool:
    """Run a module unless it has; one that fails runs anew when it is used again. False while this thread runs it."""
    name = module.__name__
    with _lock:
        if type(module) is not _Deferred:
            return True
        if name in _running:
            return False
        _running.add(name)
        try:
            spec = module.__spec__
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(module)
            module.__class__ = types.ModuleType  # type: ignore[assignment]
        finally:
            _running.discard(name)
        return True


def defer(name: str) -> None:
    """Have the module `name`, which nobody has imported yet, run when something in it is first used."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Deferred
    sys.modules[name] = module
    package, _, own_name = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own_name, module)


for _name in DEFERRED:
    defer(_name)
