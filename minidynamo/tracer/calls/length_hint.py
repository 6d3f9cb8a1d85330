"""Owns the length hint: the call of `__len__` or `__length_hint__` that C code makes before it fills a list or tuple.

The answer only decides how much memory is reserved, but the user's method runs, and may raise. Other uses of `len` are
not here."""

from __future__ import annotations

import types

from minidynamo.tracer.attributes import lookup_on_class
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_value import next_lazy
from minidynamo.tracer.polyfills.containers import read_length_hint
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import SequenceVariable
from minidynamo.variables.iterators import IndexIterator


def unpack_sized(tx: Tracer, obj: VariableTracker, *, via_iterator: bool = False) -> list[VariableTracker]:
    """Returns the items of `list(obj)`, or of `list(iter(obj))` if `via_iterator`; unread items stay lazy."""
    if isinstance(obj, SequenceVariable):
        return obj.items.lazy()
    if via_iterator:
        obj = tx.call(iter, [obj])
    iterator = tx.call(iter, [obj])
    if _has_own_length(obj):
        tx.call(read_length_hint, [obj])
    items = []
    while (item := next_lazy(tx, iterator)) is not None:
        items.append(item)
    return items


def _has_own_length(iterable: VariableTracker) -> bool:
    """Returns whether the user defined a length for the object, or for the sequence that an iterator reads."""
    cls = (iterable.sequence or iterable).python_type if isinstance(iterable, IndexIterator) else iterable.python_type
    found = (lookup_on_class(cls, name)[0] for name in ("__len__", "__length_hint__"))
    return any(isinstance(each, types.FunctionType) and not is_trusted_module(each.__module__) for each in found)
