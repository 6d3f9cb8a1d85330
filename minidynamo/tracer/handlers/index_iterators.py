"""Owns iterators over objects that have only `__getitem__`: `iter(obj)`, `reversed(obj)`, and their lengths.

Handlers call the object's `__getitem__` and `__len__` in the same order as C.
"""

from __future__ import annotations

import operator
import types

from minidynamo.tracer.attributes import lookup_on_class
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import class_has, expect_constant
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SequenceVariable
from minidynamo.variables.iterators import BY_INDEX, IndexIterator, SequenceIterator


def by_index(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """Returns `iter(obj)`."""
    if isinstance(lookup_on_class(obj.python_type, "__getitem__")[0], types.WrapperDescriptorType):
        what = f"iteration over a {obj.python_type.__name__}"
        tx.break_graph("MD242", what, why="Only Python knows whether this class takes indices.")
    return IndexIterator(obj, 0, BY_INDEX)


def backwards_by_index(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """Returns `reversed(obj)`; asks for the object's length immediately."""
    return IndexIterator(obj, _length(tx, obj) - 1, reversed)


@registry.advance(IndexIterator)
def _next(tx: Tracer, iterator: IndexIterator) -> VariableTracker | None:
    sequence, ends = iterator.sequence, (IndexError, StopIteration)
    backwards = iterator.cls is reversed
    item = None
    if sequence is not None and iterator.position >= 0:
        asked = [sequence, ConstantVariable(iterator.position)]
        if backwards:
            iterator.sequence = None  # any exception ends the iterator
        item = catch_raised(ends, lambda: tx.call(operator.getitem, asked, lazy=True), lambda error: None)
    iterator.sequence = None if item is None else sequence
    iterator.position += 0 if item is None else -1 if backwards else 1
    return item


@registry.method(BY_INDEX, "__length_hint__")
def _left(tx: Tracer, self: IndexIterator) -> VariableTracker:
    if self.sequence is None:
        return ConstantVariable(0)
    if not class_has(self.sequence.python_type, "__len__"):
        return ConstantVariable(NotImplemented)
    return ConstantVariable(max(0, _length(tx, self.sequence) - self.position))


@registry.method(reversed, "__length_hint__")
def _left_backwards(tx: Tracer, self: IndexIterator | SequenceIterator) -> VariableTracker:
    if isinstance(self, SequenceIterator):  # of a tuple
        items = self.sequence.items if isinstance(self.sequence, SequenceVariable) else self.sequence
        return ConstantVariable(max(0, len(items) - self.position))
    if self.sequence is None:
        return ConstantVariable(0)
    left = self.position + 1
    return ConstantVariable(0 if _length(tx, self.sequence) < left else left)


def _length(tx: Tracer, obj: VariableTracker) -> int:
    length: int = expect_constant(tx, tx.call(len, [obj]), "the length of what is iterated over")
    return length
