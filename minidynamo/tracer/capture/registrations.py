"""Owns the import of everything that registers itself (opcodes, handlers, polyfills, wrappers): no list to keep.

Where they are looked up is in `tracer/records/registry.py` and `tracer/opcodes/table.py`.
"""

from __future__ import annotations

import importlib
import pkgutil

from minidynamo.tracer import handlers, opcodes, polyfills, wrappers


def register_all() -> None:
    """Import every file of opcodes, handlers, polyfills and wrappers."""
    for package in (opcodes, handlers, polyfills, wrappers):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
