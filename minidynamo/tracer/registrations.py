"""Owns the import of everything that registers itself: opcodes, handlers, polyfills. A new file needs no list.

Where they are looked up is in `registry.py` and `opcodes/table.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from minidynamo import tracer
from minidynamo.tracer import handlers, opcodes


def register_all() -> None:
    """Import every file of opcodes, handlers and polyfills."""
    for package, ending in ((opcodes, ""), (handlers, ""), (tracer, "polyfills")):
        _import_from(package, ending)


def _import_from(package: ModuleType, ending: str) -> None:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.endswith(ending):
            importlib.import_module(found.name)
