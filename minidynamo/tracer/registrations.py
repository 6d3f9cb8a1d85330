"""Owns the import of everything that registers itself: opcodes, handlers, polyfills. A new file needs no list.

Where they are looked up is in `registry.py` and `opcodes/table.py`.
"""

from __future__ import annotations

import importlib
import pkgutil

from minidynamo.tracer import handlers, opcodes, polyfills


def register_all() -> None:
    """Import every file of opcodes, handlers and polyfills."""
    for package in (opcodes, handlers, polyfills):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
