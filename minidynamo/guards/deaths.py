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

import torch

_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, enum.Enum)
# Classes without `__del__` whose instances hold nothing that is looked at.
_SIMPLE = {type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter}
_CONTAINERS = {list, tuple, deque, set, frozenset, dict, OrderedDict}
_LIBRARIES = ("torch", "minidynamo")
_EVERYTHING = object()


def is_noticed(value: object) -> bool:
    """Whether code runs when a value dies: its own, or that of a weak reference."""
    has_finalizer = hasattr(type(value), "__del__")
    if (not has_finalizer and not weakref.getweakrefcount(value)) or isinstance(value, _LASTING):
        return False
    if isinstance(value, types.GeneratorType):
        has_finalizer = value.gi_suspended  # what waits behind its `yield`, in `finally` and `with`, is run
    return has_finalizer or any(reference.__callback__ is not None for reference in watchers(value))


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
    if cls in _CONTAINERS and not _all_unnoticed(value):  # type: ignore[arg-type]
        return False
    return not is_noticed(value)


def loses_unnoticed(owner: Any, key: Any = _EVERYTHING) -> bool:
    """Whether nobody is told when what `owner` holds under a key dies; without a key, all that it holds.

    The owner may be a container, a closure cell, or an object with slots. It need not hold anything there.
    """
    if type(owner) is dict and key is not _EVERYTHING:
        value = owner.get(key)
        if type(value) in _SIMPLE and not weakref.getweakrefcount(value):
            return True
        return dies_unnoticed(value)
    if key is _EVERYTHING:
        return _all_unnoticed(owner)
    try:
        return dies_unnoticed(_held(owner, key))
    except (LookupError, AttributeError, ValueError):
        return True


def _held(owner: Any, key: Any) -> object:
    cls = type(owner)
    if issubclass(cls, dict):
        return dict.get(owner, key)  # `dict.__getitem__` asks `__missing__`: a defaultdict would make the item
    if issubclass(cls, list):
        return list.__getitem__(owner, key)
    if issubclass(cls, deque):
        return deque.__getitem__(owner, key)
    if cls is types.MappingProxyType:
        return owner[key]
    return owner.cell_contents if cls is types.CellType else object.__getattribute__(owner, key)


def _all_unnoticed(owner: Iterable[Any]) -> bool:
    values = chain(owner, owner.values()) if isinstance(owner, Mapping) else owner
    held = [*values]
    watched = any(map(weakref.getweakrefcount, held)) or any(hasattr(cls, "__del__") for cls in {*map(type, held)})
    return not (watched and any(map(is_noticed, held)))
