"""Owns the polyfills of the operator module's functions that are not operators of the language, and of its callables.

Operators are not here (`tracer/calls/operators.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# No library function inside its own polyfill.

from __future__ import annotations

import operator

from minidynamo.tracer.polyfills.lists import read_length_hint, same_or_equal
from minidynamo.tracer.records.registry import cannot_trace, polyfill


@polyfill(operator.abs)
def operator_abs(a, /):
    return abs(a)


@polyfill(operator.inv)
def operator_inv(a, /):
    return ~a


@polyfill(operator.concat)
def concat(a, b, /):
    return _both_sequences(a, b) and a + b


@polyfill(operator.iconcat)
def iconcat(a, b, /):
    if _both_sequences(a, b):
        a += b
    return a


def _both_sequences(a, b):
    if not (hasattr(type(a), "__getitem__") and hasattr(type(b), "__getitem__")):
        cannot_trace("`operator.concat` of what is not a sequence", "it raises TypeError")
    return True


@polyfill(operator.countOf)
def count_of(a, b, /):
    found = 0
    for item in a:
        if same_or_equal(item, b):
            found += 1
    return found


@polyfill(operator.indexOf)
def index_of(a, b, /):
    for position, item in enumerate(a):
        if same_or_equal(item, b):
            return position
    raise ValueError("the value is not there")


@polyfill(operator.length_hint)
def length_hint(obj, default=0, /):
    if not issubclass(type(default), int):
        raise TypeError(f"'{type(default).__name__}' object cannot be interpreted as an integer")
    return read_length_hint(obj, default)


def call(obj, /, *args, **kwargs):
    """Executes `operator.call`."""
    return obj(*args, **kwargs)


if hasattr(operator, "call"):
    polyfill(operator.call)(call)


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
