"""Owns the polyfills of functools: reduce, partialmethod, keys of cmp_to_key, and dispatch by class.

`partial`, `wraps` and caches are not here but have handlers (`handlers/callables.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

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


def compared_key(compare, obj):
    """Returns the key object of `cmp_to_key(compare)` for an object."""
    return functools.cmp_to_key(compare)(obj)


@polyfill(functools.partialmethod.__get__)
def partialmethod_get(self, obj, cls=None):
    if obj is None or not hasattr(self.func, "__get__"):
        return cannot_trace("a partialmethod that is read from a class", "it gives a function of its own")
    return functools.partial(self.func.__get__(obj, cls), *self.args, **self.keywords)


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


@polyfill(functools.singledispatchmethod.__get__)
def single_dispatch_method(self, obj, cls=None):
    def method(*args, **kwargs):
        if not args:
            return cannot_trace("a `singledispatchmethod` without positional arguments", "it raises an exception")
        return _implementation(self.dispatcher, args[0]).__get__(obj, cls)(*args, **kwargs)

    return method


def inner_code(function: Callable[..., Any], name: str) -> CodeType:
    """Returns the code of the function called `name` that a function defines."""
    return next(c for c in function.__code__.co_consts if isinstance(c, CodeType) and c.co_name == name)


# Each `singledispatch` function is a function object of its own, with the same code.
polyfill_code(inner_code(functools.singledispatch, "wrapper"))(single_dispatch)
