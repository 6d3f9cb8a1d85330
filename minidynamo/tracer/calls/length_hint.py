"""Owns the question that C puts to an iterable of the program's before it makes a list or tuple of what that gives.

The answer decides nothing but how much memory is taken; the code that gives it runs, and may raise.
"""

from __future__ import annotations

import types

from minidynamo.tracer.attributes import lookup_on_class
from minidynamo.tracer.lazy.lazy_containers import lazy_items, next_lazy
from minidynamo.tracer.polyfills.lists import ask_length
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import SequenceVariable
from minidynamo.variables.iterators import IndexIterator


def unpack_sized(tx: Tracer, obj: VariableTracker, *, iterator_is_asked: bool = False) -> list[VariableTracker]:
    """`list(obj)` as the program sees it, or `list(iter(obj))`; items that nobody has looked at are unread."""
    if isinstance(obj, SequenceVariable):
        return [*lazy_items(obj.items)]
    if iterator_is_asked:
        obj = tx.call(iter, [obj])
    iterator = tx.call(iter, [obj])
    if _says_length(obj):
        tx.call(ask_length, [obj])
    items = []
    while (item := next_lazy(tx, iterator)) is not None:
        items.append(item)
    return items


def _says_length(asked: VariableTracker) -> bool:
    """Whether the program has written how long it is, or what it gives the items of."""
    cls = (asked.sequence or asked).python_type if isinstance(asked, IndexIterator) else asked.python_type
    found = (lookup_on_class(cls, name)[0] for name in ("__len__", "__length_hint__"))
    return any(isinstance(each, types.FunctionType) and not is_trusted_module(each.__module__) for each in found)
