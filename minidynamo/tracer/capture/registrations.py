"""Owns the import of all files that register handlers (opcodes, handlers, polyfills, wrappers). No list is needed.

`tracer/records/registry.py` and `tracer/opcodes/table.py` look the handlers up.
"""

from __future__ import annotations

import importlib
import pkgutil

from minidynamo.tracer import handlers, opcodes, polyfills, wrappers


def register_all() -> None:
    """Imports every file of opcodes, handlers, polyfills and wrappers."""
    for package in (opcodes, handlers, polyfills, wrappers):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
