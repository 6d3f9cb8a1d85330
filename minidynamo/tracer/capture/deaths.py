"""Owns the search for finalizers of objects, and for the objects that die with others.

`tracer/capture/finalizers.py` finds the references that a program drops.
Nothing here runs user code.
"""

from __future__ import annotations

import enum
import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.references import Reference

_LASTING = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# The ids of classes without `__del__` whose instances refer to no object. Ids, because testing whether a class is in a
# set might run code of its metaclass.
_SIMPLE_CLASSES = {*map(id, (type(None), bool, int, float, complex, str, bytes))}
_count_references = weakref.getweakrefcount
# The most container objects to follow; beyond this number a finalizer is assumed to exist.
_MOST = 10_000


def has_finalizers(value: object) -> bool:
    """Returns whether code runs when a value dies: its own finalizer, or the callback of a weak reference."""
    has_finalizer = hasattr(type(value), "__del__")
    if (not has_finalizer and not weakref.getweakrefcount(value)) or issubclass(type(value), _LASTING):
        return False
    if type(value) is types.GeneratorType:
        has_finalizer = value.gi_suspended  # a suspended generator runs `finally` and `with` blocks after its `yield`
    return has_finalizer or any(_callback_of(reference) is not None for reference in watchers(value))


def watchers(value: object) -> list[Any]:
    """Lists the weak references to a value, without the bookkeeping of torch and minidynamo.

    The callbacks of torch's bookkeeping are defined inside functions of private modules, so no program can have
    registered them.
    """
    return [reference for reference in weakref.getweakrefs(value) if not _is_bookkeeping(reference)]


def _callback_of(reference: Any) -> Any:
    """Returns the callback of a weak reference. Attribute lookup on a proxy would ask its referent."""
    if issubclass(type(reference), weakref.ref):
        return reference.__callback__
    return next(iter(gc.get_referents(reference)), None)


def _is_bookkeeping(reference: Any) -> bool:
    if type(reference) is Reference:
        return True
    callback = _callback_of(reference)
    if isinstance(callback, weakref.finalize):
        finalizer = callback.peek()
        callback = None if finalizer is None else finalizer[1]
    if type(callback) is not types.FunctionType or "<locals>" not in callback.__qualname__:
        return False
    return str(callback.__module__).startswith("torch._")


def any_dying(
    values: list[Any],
    predicate: Callable[[list[Any]], bool],
    always_dies: Callable[[object], bool] = lambda _: False,
) -> bool:
    """Returns whether `predicate` holds for some object that dies when one reference to each of `values` is dropped.

    An object dies if no other Python object refers to it, or if `always_dies` returns True for it. The caller must hold
    the values in this list only. Objects that only autograd holds are not followed. If there are too many objects to
    follow, the answer is True.
    """
    # The number of references to each object by this function and by dead objects.
    expected: dict[int, int] = {}
    dead: set[int] = set()
    batches, room = [], _MOST
    while values:
        batches.append(values)
        batch = []
        for part in values:
            identity = id(part)
            if identity in dead:
                continue
            # At first, `part` and the argument of getrefcount; then, for each visit, a dead object and a list.
            expected[identity] = count = expected.get(identity, 2) + 2
            if sys.getrefcount(part) <= count or always_dies(part):
                dead.add(identity)
                batch.append(part)
        if predicate(batch):
            return True
        holders = [part for part in batch if not holds_nothing(part)]
        room -= len(holders)
        values = gc.get_referents(*holders) if holders else []
        values += [part.grad for part in holders if has_gradient(part) and part.grad is not None]
        if room < 0:
            return True
    return False


def holds_nothing(value: Any) -> bool:
    """Returns whether no object dies with a value."""
    cls = type(value)
    return id(cls) in _SIMPLE_CLASSES or (cls is torch.Tensor and _is_bare(value))


def _is_bare(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has no attributes and no gradient."""
    if tensor.__dict__:
        return False
    if not tensor.requires_grad:
        return tensor.grad is None
    return not has_gradient(tensor) or tensor.grad is None


def any_has_finalizers(values: list[Any]) -> bool:
    """Returns whether code runs when some of the values die."""
    classes = {id(cls): cls for cls in map(type, values)}
    finalized = any(hasattr(cls, "__del__") for identity, cls in classes.items() if identity not in _SIMPLE_CLASSES)
    return (finalized or any(map(weakref.getweakrefcount, values))) and any(map(has_finalizers, values))


def any_is_observed(values: list[Any]) -> bool:
    """Returns whether the program can observe that some of the values are alive."""
    return any_has_finalizers(values) or (
        any(map(_count_references, values)) and any(map(_has_weak_references, values))
    )


def _has_weak_references(value: object) -> bool:
    return bool(_count_references(value)) and not issubclass(type(value), _LASTING) and bool(watchers(value))


def has_gradient(tensor: torch.Tensor) -> bool:
    """Returns whether `tensor.grad` may be set, and reading it runs no code and raises no warning."""
    return type(tensor) in _TENSORS and compat.knows_history(tensor) and (tensor.is_leaf or tensor.retains_grad)
