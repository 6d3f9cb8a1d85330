"""Owns the polyfills of functools (reduce, dispatch by class), of functions from torch.jit.script_if_tracing, and of
calls of operator.itemgetter, attrgetter and methodcaller.

`partial`, `wraps` and caches are not here but have handlers (`handlers/callables.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from minidynamo.tracer.records.registry import cannot_trace, polyfill, polyfill_code

_MISSING = object()


@polyfill(functools.reduce)
def reduce(function, iterable, /, *initial):
    source = iter(iterable)
    result = initial[0] if initial else next(source, _MISSING)
    if result is _MISSING:
        raise TypeError("`reduce` of nothing")
    while (item := next(source, _MISSING)) is not _MISSING:
        result = function(result, item)
    return result


# --- functions that choose an implementation by the class of their first argument ---------------------------------


def best_match(cls: type, classes: tuple[type, ...]) -> type:
    """Returns the registered class that `functools.singledispatch` chooses for an object of class `cls`."""
    found: Any = functools._find_impl(cls, {key: key for key in classes})  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]


def _implementation(generic, argument):
    registered = generic.registry
    return registered[best_match(argument.__class__, tuple(registered))]


def single_dispatch(generic, /, *args, **kwargs):
    """Calls a function that `functools.singledispatch` made."""
    if not args:
        return cannot_trace("a `singledispatch` function without positional arguments", "it raises TypeError")
    return _implementation(generic, args[0])(*args, **kwargs)


def inner_code(function: Callable[..., Any], name: str) -> CodeType:
    """Returns the code of the function called `name` that a function defines."""
    return next(c for c in function.__code__.co_consts if isinstance(c, CodeType) and c.co_name == name)


# Each `singledispatch` function is a function object of its own, with the same code.
polyfill_code(inner_code(functools.singledispatch, "wrapper"))(single_dispatch)


@polyfill_code(torch.jit.script_if_tracing(best_match).__code__)
def script_if_tracing(function, *args, **kwargs):
    """Calls a function that `torch.jit.script_if_tracing` made: no frame is captured while torch.jit traces."""
    return function.__original_fn(*args, **kwargs)


# --- calls of itemgetter, attrgetter and methodcaller objects, with the arguments of their constructors --------------


def get_items(obj, item, /, *items):
    """Returns `operator.itemgetter(item, *items)(obj)`."""
    return tuple([obj[key] for key in (item, *items)]) if items else obj[item]


def get_attributes(obj, name, /, *names):
    """Returns `operator.attrgetter(name, *names)(obj)`."""
    return tuple([_path(obj, path) for path in (name, *names)]) if names else _path(obj, name)


def _path(obj, path):
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


def call_a_method(obj, name, /, *args, **kwargs):
    """Returns `operator.methodcaller(name, *args, **kwargs)(obj)`."""
    return getattr(obj, name)(*args, **kwargs)
