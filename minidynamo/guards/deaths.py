"""Owns who is told when an object dies, and the check that nobody is told of what a program lets go of.

What a program lets go of is found by the tracer (`tracer/lifetimes.py`, `tracer/losses.py`). Nothing here runs code of
the user's.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, enum.Enum)
_PLAIN = {type(None), bool, int, float, complex, str, bytes}
_CONTAINERS = {list, tuple, deque, set, frozenset, dict, OrderedDict}
_LIBRARIES = ("torch", "minidynamo")


def is_noticed(value: Any) -> bool:
    """Whether code runs when a value dies: its own, or that of a weak reference."""
    cls = type(value)
    if cls in _PLAIN or issubclass(cls, _LASTING):
        return False
    if cls is types.GeneratorType:
        if value.gi_suspended:  # what waits behind its `yield`, in `finally` and `with`, is run
            return True
    elif hasattr(cls, "__del__"):
        return True
    return any(reference.__callback__ is not None for reference in watchers(value))


def watchers(value: object) -> list[weakref.ref[Any]]:
    """The weak references to a value, without those by which torch keeps its own books, of all modules, for example."""
    return [reference for reference in weakref.getweakrefs(value) if not _keeps_books(reference)]


def _keeps_books(reference: weakref.ref[Any]) -> bool:
    told: Any = reference.__callback__
    if isinstance(told, weakref.finalize):
        found = told.peek()
        told = None if found is None else found[1]
    return str(getattr(told, "__module__", "")).partition(".")[0] in _LIBRARIES


def dies_unnoticed(value: object) -> bool:
    """Whether nobody is told when a value dies; of a container its items count as well."""
    cls = type(value)
    if cls in _PLAIN:
        return True
    return not (cls in _CONTAINERS and not _all_unnoticed(value)) and not is_noticed(value)  # type: ignore[arg-type]


def loses_unnoticed(owner: Any, *keys: Any) -> bool:
    """Whether nobody is told when what `owner` holds under a key dies; without a key, all that it holds.

    The owner may be a container, a closure cell, or an object with slots. It need not hold anything there.
    """
    if not keys:
        return _all_unnoticed(owner)
    try:
        return dies_unnoticed(_held(owner, keys[0]))
    except (LookupError, AttributeError, ValueError):
        return True


def _held(owner: Any, key: Any) -> object:
    cls = type(owner)
    if issubclass(cls, dict):
        return dict.__getitem__(owner, key)
    if issubclass(cls, list):
        return list.__getitem__(owner, key)
    if cls is deque or cls is types.MappingProxyType:
        return owner[key]
    return owner.cell_contents if cls is types.CellType else object.__getattribute__(owner, key)


def _all_unnoticed(owner: Iterable[Any]) -> bool:
    values = chain(owner, owner.values()) if isinstance(owner, Mapping) else owner
    held = [*values]
    watched = any(map(weakref.getweakrefcount, held)) or any(hasattr(cls, "__del__") for cls in {*map(type, held)})
    return not (watched and any(map(is_noticed, held)))
