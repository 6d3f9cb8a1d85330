"""Owns iteration: construction and advance of iterators, zip, map, chain and islice, and iteration by `__getitem__`.

The `__iter__` handlers of containers make the containers' iterators; the rest of itertools is in
`tracer/polyfills/itertools.py`.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import operator
import types
from collections.abc import Iterator
from typing import Any

from minidynamo.errors import Diagnostic, SkipFrame, an
from minidynamo.tracer.attributes import class_has, lookup_on_class
from minidynamo.tracer.calls.operators import folded
from minidynamo.tracer.frames.exceptions import catch_raised, without_message
from minidynamo.tracer.frames.generators import GeneratorVariable
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import limit_loop, limit_trip_counts
from minidynamo.tracer.handlers.subscripts import as_index
from minidynamo.tracer.handlers.values import expect_constant
from minidynamo.tracer.lazy.lazy_value import next_lazy
from minidynamo.tracer.polyfills.itertools import tee, until
from minidynamo.tracer.reachable import has_changed_keys
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, SetVariable, Slots, TupleVariable
from minidynamo.variables.iterators import (
    BY_INDEX,
    ChainIterator,
    DictIterator,
    EnumerateIterator,
    IndexIterator,
    LibraryIterator,
    MapIterator,
    SequenceIterator,
    SliceIterator,
    ZipIterator,
)
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable

LIST_REVERSED: type = type(reversed([0]))
TUPLE_ITERATOR: type = type(iter(()))
# The largest number of items of a range or text that is unrolled; more items take too long to trace.
LONGEST_UNROLLED = 100_000
_DICTS: tuple[Any, ...] = ({}, collections.OrderedDict())
_VIEWS: list[Any] = [view for d in _DICTS for view in (d.keys(), d.values(), d.items())]
_ITERABLE_EXAMPLES: list[Any] = [[], (), set(), collections.deque(), range(0), range(2**70), "", chr(233), b"", *_VIEWS]
_TEE_ITERATOR: type = type(itertools.tee(())[0])
CALLABLE_ITERATOR: type = type(iter(int, 1))
_ITERATORS: list[type] = [
    *(zip, enumerate, map, filter, reversed, BY_INDEX, CALLABLE_ITERATOR, _TEE_ITERATOR),
    *(cls for cls in vars(itertools).values() if isinstance(cls, type) and issubclass(cls, Iterator)),
    *(type(iter(container)) for container in _ITERABLE_EXAMPLES),
    *(type(reversed(container)) for container in ([], collections.deque(), *_VIEWS)),
]


@registry.function(iter)
def _iter(tx: Tracer, obj: VariableTracker, sentinel: VariableTracker | None = None, /) -> VariableTracker:
    if sentinel is not None:
        if not class_has(obj.python_type, "__call__"):
            tx.raises(TypeError("iter(v, w): v must be callable"))
        simulated = tx.call(until, [obj, sentinel])
        return LibraryIterator(CALLABLE_ITERATOR, simulated, iter, (obj, sentinel))
    cls = obj.python_type
    if isinstance(obj, OpaqueVariable) and (cls in _ITERATORS or cls is types.GeneratorType):
        return obj  # an external iterator is its own iterator, too
    iterable = class_has(cls, "__iter__")
    if not iterable and class_has(cls, "__getitem__"):
        return by_index(tx, obj)
    if not iterable:
        tx.raises(without_message(TypeError))
    result = tx.call_method(obj, "__iter__")
    if not class_has(result.python_type, "__next__"):
        tx.raises(TypeError(f"iter() returned non-iterator of type '{result.python_type.__name__}'"), exact=True)
    return result


@registry.function(next)
@registry.accepts_lazy("default")
def _next(tx: Tracer, iterator: VariableTracker, default: VariableTracker | None = None, /) -> VariableTracker:
    if not class_has(iterator.python_type, "__next__"):
        tx.raises(TypeError(f"'{iterator.python_type.__name__}' object is not an iterator"), exact=True)
    if default is None and isinstance(iterator, (GeneratorVariable, ObjectVariable)):
        return tx.call_method(iterator, "__next__", lazy=True)  # its StopIteration may carry a value
    item = next_lazy(tx, iterator)
    if item is not None:
        return item
    return default if default is not None else tx.raises(StopIteration(), exact=True)


@registry.advance(ObjectVariable)
def _advance_object(tx: Tracer, iterator: ObjectVariable) -> VariableTracker | None:
    """Advances an iterator of the user: it ends when its `__next__` raises StopIteration."""
    ended: list[VariableTracker] = []
    return catch_raised(StopIteration, lambda: tx.call_method(iterator, "__next__", lazy=True), ended.append)


@registry.function(range)
def _range(tx: Tracer, *args: VariableTracker) -> VariableTracker:
    bounds = [as_index(tx, arg) for arg in args]
    here = [bound.unguarded_value for bound in bounds if isinstance(bound, NumberVariable | ConstantVariable)]
    if len(here) == len(bounds):
        with contextlib.suppress(TypeError, ValueError):
            varies = any(isinstance(bound, NumberVariable) for bound in bounds)
            limit_trip_counts(tx, len(range(*here)), "a loop over a range", varies=varies)
            if varies and len(here) == 3 and _is_looped_over(tx):
                steps = _steps(tx, bounds, len(range(*here)))
                if steps is not None:
                    return SequenceIterator(Slots(steps), cls=TUPLE_ITERATOR)
    plain = [expect_constant(tx, bound, "a bound of a range") for bound in bounds]
    result = folded(tx, range, bounds, plain, {})
    assert result is not None
    return result


def _is_looped_over(tx: Tracer) -> bool:
    """Returns whether the result of this call only starts a loop."""
    frame = tx.frames[-1]
    return frame.instructions[frame.next_index].opname == "GET_ITER"


def _steps(tx: Tracer, bounds: list[VariableTracker], count: int) -> list[VariableTracker] | None:
    """Returns the `count` items of a range, and guards their number instead of the bounds; None unless the step is
    positive."""
    start, stop, step = bounds
    if not tx.truth(tx.call(operator.gt, [step, ConstantVariable(0)])):
        return None
    items = [start]
    for number in range(1, count + 1):
        items.append(tx.call(operator.add, [start, tx.call(operator.mul, [step, ConstantVariable(number)])]))
    if count and not tx.truth(tx.call(operator.lt, [items[count - 1], stop])):
        return None
    return items[:count] if tx.truth(tx.call(operator.le, [stop, items[count]])) else None


@registry.function(reversed)
def _reversed(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    if isinstance(obj, ConstantVariable):
        _limit_range(tx, obj)
        try:
            values = tuple(reversed(obj.value))
        except TypeError as error:
            tx.raises(error)
        return SequenceIterator(Slots(ConstantVariable(value) for value in values), cls=type(reversed(obj.value)))
    is_sequence = class_has(obj.python_type, "__len__") and class_has(obj.python_type, "__getitem__")
    if isinstance(obj, ObjectVariable) and is_sequence and not class_has(obj.cls, "__reversed__"):
        return backwards_by_index(tx, obj)
    if not class_has(obj.python_type, "__reversed__") and not isinstance(obj, TupleVariable):
        tx.break_graph(
            "MD242", f"`reversed` of `{obj.python_type.__name__}`", why="It has no `__reversed__`.", fix="Use a list."
        )
    if isinstance(obj, TupleVariable):
        limit_loop(tx, obj)
        return SequenceIterator(Slots(obj.items.lazy()[::-1]), cls=reversed)
    return tx.call_method(obj, "__reversed__")


@registry.function(zip)
def _zip(tx: Tracer, *iterables: VariableTracker, strict: VariableTracker | None = None) -> VariableTracker:
    return ZipIterator([tx.call(iter, [it]) for it in iterables], strict is not None and tx.truth(strict))


@registry.function(enumerate)
def _enumerate(tx: Tracer, iterable: VariableTracker, start: VariableTracker | None = None) -> VariableTracker:
    count = 0 if start is None else expect_constant(tx, start, "the start of `enumerate`")
    if not isinstance(count, int):
        tx.raises(TypeError(f"'{type(count).__name__}' object cannot be interpreted as an integer"))
    return EnumerateIterator(tx.call(iter, [iterable]), count)


@registry.function(map)
def _map(tx: Tracer, function: VariableTracker, /, *iterables: VariableTracker) -> VariableTracker:
    if not iterables:
        tx.raises(TypeError("map() must have at least two arguments."))
    return MapIterator(function, [tx.call(iter, [it]) for it in iterables])


@registry.function(filter)
def _filter(tx: Tracer, function: VariableTracker, iterable: VariableTracker, /) -> VariableTracker:
    return MapIterator(function, [tx.call(iter, [iterable])], filtering=True)


@registry.function(itertools.chain)
def _chain(tx: Tracer, *iterables: VariableTracker) -> VariableTracker:
    return ChainIterator(SequenceIterator(Slots(iterables), cls=TUPLE_ITERATOR))


@registry.method(itertools.chain, "from_iterable")
def _chain_from_iterable(tx: Tracer, cls: VariableTracker, iterables: VariableTracker, /) -> VariableTracker:
    return ChainIterator(tx.call(iter, [iterables]))


@registry.function(itertools.tee)
def _tee(tx: Tracer, *args: VariableTracker) -> VariableTracker:
    branches = tx.unpack(tx.call(tee, args))
    # The buffer that the branches share cannot be created again, so the branches count as started.
    return TupleVariable([LibraryIterator(_TEE_ITERATOR, branch, itertools.tee, started=True) for branch in branches])


@registry.function(itertools.islice)
def _islice(tx: Tracer, iterable: VariableTracker, /, *bounds: VariableTracker) -> VariableTracker:
    limits = [expect_constant(tx, bound, "a bound of `islice`") for bound in bounds]
    try:
        itertools.islice((), *limits)
    except (TypeError, ValueError) as error:
        tx.raises(error)
    start, stop, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
    iterator = tx.call(iter, [iterable])
    return SliceIterator(iterator, start or 0, stop, 1 if step is None else step)


def _itself(tx: Tracer, self: VariableTracker) -> VariableTracker:
    return self


def _advance(tx: Tracer, self: VariableTracker) -> VariableTracker:
    return _next(tx, self)


for _cls in dict.fromkeys(_ITERATORS):
    registry.method(_cls, "__iter__")(_itself)
    registry.method(_cls, "__next__")(_advance)


# --- constants that are iterable ------------------------------------------------------------------------------------


def _limit_range(tx: Tracer, iterable: ConstantVariable) -> None:
    if isinstance(iterable.unguarded_value, range):
        count, varies = len(iterable.unguarded_value), iterable.source is not None
        limit_trip_counts(tx, count, "a loop over a range", varies=varies)


def _iterate_constant(tx: Tracer, self: ConstantVariable) -> VariableTracker:
    _limit_range(tx, self)
    if len(self.value) > LONGEST_UNROLLED:
        tx.break_graph(
            "MD242",
            f"looping over {len(self.value)} items",
            why="A loop is unrolled while tracing; this one would take too long.",
            fix="Use tensor operations instead of a loop.",
        )
    return SequenceIterator(Slots(ConstantVariable(value) for value in self.value), cls=type(iter(self.value)))


for _cls in (str, bytes, range):
    registry.method(_cls, "__iter__")(_iterate_constant)


# --- advancing ------------------------------------------------------------------------------------------------------


@registry.advance(SequenceIterator)
def _next_of_sequence(tx: Tracer, iterator: SequenceIterator) -> VariableTracker | None:
    sequence = iterator.sequence
    items = sequence.items if isinstance(sequence, SequenceVariable) else sequence
    if isinstance(sequence, ListVariable) and iterator.changes_at_start not in (None, sequence.changes):
        what = "the frame runs eagerly: a deque is changed while it is looped over"
        raise SkipFrame(Diagnostic("MD202", what, "RuntimeError: deque mutated during iteration"))
    try:
        # Later items are not read yet: the loop may end before they are needed.
        item = items.lazy_at(iterator.position) if iterator.position >= 0 else None
    except IndexError:
        item = None
    if item is None:
        iterator.sequence = Slots()  # an exhausted iterator stays exhausted, whatever happens to the list
        return None
    iterator.position += -1 if isinstance(sequence, ListVariable) and iterator.cls is LIST_REVERSED else 1
    return item


@registry.advance(DictIterator)
def _next_of_dict(tx: Tracer, iterator: DictIterator) -> VariableTracker | None:
    mapping = iterator.mapping
    if iterator.keys and has_changed_keys(tx.side_effects, iterator):
        # A rebuilt iterator does not know the size at its start, so the whole frame has to run eagerly.
        what = f"the frame runs eagerly: {an(mapping.cls.__name__)} changes its keys while it is looped over"
        raise SkipFrame(Diagnostic("MD202", what, "RuntimeError: it changed size during iteration"))
    if iterator.position >= len(iterator.keys):
        iterator.keys = ()
        return None
    key = iterator.keys[iterator.position]
    iterator.position += 1
    if iterator.kind == "keys" or isinstance(mapping, SetVariable):
        return key.variable
    value = mapping.items.lazy_at(key)
    return value if iterator.kind == "values" else TupleVariable([key.variable, value])


@registry.advance(ZipIterator)
def _next_of_zip(tx: Tracer, iterator: ZipIterator) -> VariableTracker | None:
    row: list[VariableTracker] = []
    for position, column in enumerate(iterator.iterators):
        item = next_lazy(tx, column)
        if item is None:
            if iterator.strict:
                _expect_end(tx, iterator, position)
            return None
        row.append(item)
    return TupleVariable(row) if row else None


def _expect_end(tx: Tracer, iterator: ZipIterator, position: int) -> None:
    """Raises Python's error if one iterator of a strict `zip` ends before the others."""
    columns = enumerate(iterator.iterators)
    longer = (index for index, column in columns if index and next_lazy(tx, column) is not None)
    shortest = position or next(longer, 0)
    if shortest:
        others = "argument " if shortest == 1 else "arguments 1-"
        message = f"zip() argument {shortest + 1} is {'shorter' if position else 'longer'} than {others}{shortest}"
        tx.raises(ValueError(message), exact=True)


@registry.advance(ChainIterator)
def _next_of_chain(tx: Tracer, chain: ChainIterator) -> VariableTracker | None:
    while True:
        if chain.current is None:
            iterable = next_lazy(tx, chain.iterables)
            if iterable is None:
                return None
            chain.current = tx.call(iter, [iterable.realize()])
        item = next_lazy(tx, chain.current)
        if item is not None:
            return item
        chain.current = None


@registry.advance(LibraryIterator)
def _next_of_library(tx: Tracer, iterator: LibraryIterator) -> VariableTracker | None:
    iterator.started = True
    item = next_lazy(tx, iterator.iterator)
    if iterator.items_taken is not None and item is not None:
        iterator.items_taken += 1
    return item


@registry.advance(SliceIterator)
def _next_of_slice(tx: Tracer, part: SliceIterator) -> VariableTracker | None:
    # Like the original, it consumes the items before `stop`, and none after.
    while part.iterator is not None and (part.stop is None or part.position < part.stop):
        item = next_lazy(tx, part.iterator)
        if item is None:
            break
        part.position += 1
        if part.position > part.next_index:
            part.next_index += part.step
            return item
    part.iterator = None
    return None


@registry.advance(EnumerateIterator)
def _next_of_enumerate(tx: Tracer, iterator: EnumerateIterator) -> VariableTracker | None:
    item = next_lazy(tx, iterator.iterator)
    if item is None:
        return None
    iterator.count += 1
    return TupleVariable([ConstantVariable(iterator.count - 1), item])


@registry.advance(MapIterator)
def _next_of_map(tx: Tracer, iterator: MapIterator) -> VariableTracker | None:
    while True:
        present: list[VariableTracker] = []
        for column in iterator.iterators:
            item = next_lazy(tx, column)
            if item is None:
                return None
            present.append(item)
        if not iterator.filtering:
            return tx.call(iterator.function, present, lazy=True)
        plain = isinstance(iterator.function, ConstantVariable) and iterator.function.value is None
        if tx.truth(present[0] if plain else tx.call(iterator.function, present)):
            return present[0]


def by_index(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """Returns `iter(obj)`."""
    if isinstance(lookup_on_class(obj.python_type, "__getitem__")[0], types.WrapperDescriptorType):
        what = f"iteration over {an(obj.python_type.__name__)}"
        tx.break_graph("MD242", what, why="Only Python knows whether this class takes indices.")
    return IndexIterator(obj, 0, BY_INDEX)


def backwards_by_index(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """Returns `reversed(obj)`; asks for the object's length immediately."""
    return IndexIterator(obj, _length(tx, obj) - 1, reversed)


@registry.advance(IndexIterator)
def _next_by_index(tx: Tracer, iterator: IndexIterator) -> VariableTracker | None:
    sequence, ends = iterator.sequence, (IndexError, StopIteration)
    backwards = iterator.cls is reversed
    item = None
    if sequence is not None and iterator.position >= 0:
        arguments = [sequence, ConstantVariable(iterator.position)]
        if backwards:
            iterator.sequence = None  # any exception ends the iterator
        item = catch_raised(ends, lambda: tx.call(operator.getitem, arguments, lazy=True), lambda error: None)
    iterator.sequence = None if item is None else sequence
    iterator.position += 0 if item is None else -1 if backwards else 1
    return item


def _length(tx: Tracer, obj: VariableTracker) -> int:
    length: int = expect_constant(tx, tx.call(len, [obj]), "the length of an iterable")
    return length
