"""Owns the methods of lists, deques, tuples, torch.Size and namedtuples, except polyfills.

A tracked sequence holds its elements in a Python list. Most methods call the list's own method and record the change in
the side-effect journal. Searching, counting and extending are in `tracer/polyfills/containers.py`.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import torch

from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed
from minidynamo.tracer.frames.exceptions import without_message
from minidynamo.tracer.frames.interpreter import Raised, Tracer
from minidynamo.tracer.frames.unrolling import limit_copy, limit_loop
from minidynamo.tracer.handlers.values import (
    constant,
    expect_constant,
    expect_index,
    is_constant,
    none,
    not_implemented,
)
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.lazy.lazy_value import exact_copy, unpack_lazy
from minidynamo.tracer.numbers.arithmetic import is_int_number, specialized
from minidynamo.tracer.polyfills.containers import sequence_compare, sequence_equal
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, Slots, TupleVariable
from minidynamo.variables.iterators import SequenceIterator
from minidynamo.variables.objects import ObjectVariable

deque = collections.deque
MUTABLE = (list, deque)
SEQUENCES = (list, deque, tuple, torch.Size)


def storage_of(variable: VariableTracker) -> VariableTracker:
    """Returns the built-in container of an instance of a subclass; any other tracker unchanged."""
    if isinstance(variable, ObjectVariable) and variable.storage is not None:
        return variable.storage
    return variable


def new_like(tx: Tracer, sequence: SequenceVariable, items: list[VariableTracker]) -> SequenceVariable:
    """Returns a new sequence of the class that slicing and arithmetic of `sequence` return."""
    if isinstance(sequence, ListVariable):
        return ListVariable(_last_items(sequence.maxlen, items), sequence.cls, maxlen=sequence.maxlen)
    return TupleVariable(items, torch.Size if sequence.cls is torch.Size else tuple)


def _last_items(maxlen: int | None, items: list[VariableTracker]) -> list[VariableTracker]:
    """Returns the items that remain in a deque of length `maxlen`: the last items."""
    return items if maxlen is None else items[max(len(items) - maxlen, 0) :]


# --- reading ------------------------------------------------------------------------------------------------------


def length_of(tx: Tracer, items: Collection[object]) -> VariableTracker:
    """Returns `len` of the contents of a container.

    The length of an external container may be a symbolic number, or may be guarded only when it is used.
    """
    length = items.lazy_length() if isinstance(items, LazyList | LazyDict) else None
    if length is not None and tx.graph.shapes.varies(length.source, length.real):
        total = tx.call(operator.add, [tx.wrap(length.real, length.source), constant(length.added)])
        return total if length.limit is None else tx.call(min, [total, constant(length.limit)])
    if length is not None and not length.added:
        read = tx.graph.guard_on_read(length.container, GuardKind.LENGTH, length.real)
        return ConstantVariable(length.real, source=length.source, on_read=read)
    return ConstantVariable(len(items))


@registry.methods(SEQUENCES, "__len__")
def _len(tx: Tracer, self: SequenceVariable) -> VariableTracker:
    return length_of(tx, self.items)


@registry.methods(SEQUENCES, "__iter__")
def _iter(tx: Tracer, self: SequenceVariable) -> VariableTracker:
    limit_loop(tx, self)
    cls = type(iter(self.cls())) if self.cls in SEQUENCES else type(iter(()))
    changes_at_start = self.changes if isinstance(self, ListVariable) and self.cls is deque else None
    # Items of a tuple created during capture may die one by one; items of an external tuple are read by the loop.
    is_lazy = isinstance(self, ListVariable) or isinstance(self.items, LazyList)
    return SequenceIterator(self if is_lazy else self.items, cls=cls, changes_at_start=changes_at_start)


@registry.methods(SEQUENCES, "__reversed__")
def _reversed(tx: Tracer, self: SequenceVariable) -> VariableTracker:
    limit_loop(tx, self)
    if self.cls is list:
        return SequenceIterator(self, len(self.items) - 1, type(reversed([])))
    cls = type(reversed(self.cls())) if isinstance(self, ListVariable) else reversed
    return SequenceIterator(Slots(self.items.lazy()[::-1]), cls=cls)


@registry.methods(SEQUENCES, "__getitem__")
def _getitem(tx: Tracer, self: SequenceVariable, key: VariableTracker) -> VariableTracker:
    index = expect_index(tx, key, self.cls.__name__)
    if isinstance(index, slice):
        if self.cls is deque:
            tx.raises(TypeError("sequence index must be integer, not 'slice'"), exact=True)
        if index.step == 0:
            tx.raises(ValueError("slice step cannot be zero"), exact=True)
        if self.cls is tuple and (found := _whole_tuple(tx, self, index)) is not None:
            return found
        if isinstance(self.items, LazyList) and self.items.needs_length(index):
            limit_loop(tx, self, "a slice of data")
        return new_like(tx, self, self.items.lazy_slice(index))
    try:
        return self.items.lazy_at(index)
    except IndexError:
        name = "tuple" if issubclass(self.cls, tuple) else self.cls.__name__
        tx.raises(IndexError(f"{name} index out of range"), exact=True)


def _whole_tuple(tx: Tracer, self: SequenceVariable, index: slice) -> SequenceVariable | None:
    """Returns a slice that is the whole tuple, now or perhaps at the next call, and then the same object; else None."""
    length = self.items.lazy_length() if isinstance(self.items, LazyList) else None
    indices = range(len(self.items) if length is None else length.real)
    if indices[index] == indices and len(self.items) == len(indices):
        return self
    if length is None or self.source is None:
        return None
    bounds = [None if bound is None else operator.index(bound) for bound in (index.start, index.stop, index.step)]
    text = ":".join("" if bound is None else str(bound) for bound in bounds)
    items = self.items.lazy_slice(index)
    return TupleVariable(items, source=Computed(f"{{0}}[{text}]", (self.source,)))


@registry.methods(MUTABLE, "copy", "__copy__")
def _copy(tx: Tracer, self: ListVariable) -> VariableTracker:
    return new_like(tx, self, self.items.lazy())


@registry.methods((tuple,), "__hash__")
def _hash(tx: Tracer, self: TupleVariable) -> VariableTracker:
    return constant(hash(expect_constant(tx, self, "the hash of a tuple")))


@registry.method(tuple, "__getnewargs__")
def _getnewargs(tx: Tracer, self: TupleVariable) -> VariableTracker:
    return TupleVariable([TupleVariable(self.items.lazy())])


@registry.method(torch.Size, "numel")
def _numel(tx: Tracer, self: TupleVariable) -> VariableTracker:
    assert isinstance(self, TupleVariable)
    return functools.reduce(lambda total, size: tx.call(operator.mul, [total, size]), self.items, constant(1))


# --- arithmetic and comparison ------------------------------------------------------------------------------------


def _base_class(sequence: VariableTracker) -> type | None:
    """Returns the class within which a sequence can be added and compared."""
    cls = sequence.python_type
    return next((base for base in (list, deque, tuple) if issubclass(cls, base)), None)


def _refuse(tx: Tracer, self: SequenceVariable, other: VariableTracker) -> NoReturn:
    """Raises TypeError: sequences never return NotImplemented for `+` and `*`.

    Operators ask the other operand first. The message depends on the caller; other number-like operands are left to
    Python.
    """
    if isinstance(other, SequenceVariable | ConstantVariable):
        tx.raises(without_message(TypeError))
    names = self.cls.__name__, other.python_type.__name__
    tx.raises(TypeError("{} does not take {} here".format(*map(an, names))))


@registry.methods(SEQUENCES, "__add__")
def _add(tx: Tracer, self: SequenceVariable, other: VariableTracker) -> VariableTracker:
    operand, other = other, storage_of(other)
    if not isinstance(other, SequenceVariable) or _base_class(self) is not _base_class(other):
        _refuse(tx, self, other)
    if self.cls is other.cls is tuple and not (self.items and other.items):
        return self if self.items else other if other is operand else exact_copy(other)
    limit_copy(tx, self)
    limit_copy(tx, other)
    like = other if other.cls is torch.Size else self
    return new_like(tx, like, [*self.items.lazy(), *other.items.lazy()])


@registry.method(torch.Size, "__radd__")
def _radd(tx: Tracer, self: TupleVariable, other: VariableTracker) -> VariableTracker:
    if not isinstance(other, TupleVariable):
        return not_implemented()
    return new_like(tx, self, [*other.items.lazy(), *self.items.lazy()])


@registry.methods(SEQUENCES, "__mul__", "__rmul__")
def _mul(tx: Tracer, self: SequenceVariable, other: VariableTracker) -> VariableTracker:
    other = specialized(other)
    if not isinstance(other, ConstantVariable) or not isinstance(other.value, int):
        _refuse(tx, self, other)
    if self.cls is tuple and other.value == 1:
        return self
    return new_like(tx, self, self.items.lazy() * other.value)


@registry.methods(MUTABLE, "__imul__")
def _imul(tx: Tracer, self: ListVariable, other: VariableTracker) -> VariableTracker:
    other = specialized(other)
    if not isinstance(other, ConstantVariable) or not isinstance(other.value, int):
        _refuse(tx, self, other)
    self.items[:] = _last_items(self.maxlen, self.items.lazy() * other.value)
    self.changes += 1
    tx.side_effects.contents_changed(self)
    return self


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[..., VariableTracker]:
    def compared(tx: Tracer, self: SequenceVariable, other: VariableTracker) -> VariableTracker:
        if _base_class(self) is not _base_class(other):
            return not_implemented()
        if compare in (operator.eq, operator.ne):
            equal = tx.truth(tx.call(sequence_equal, [self, storage_of(other)]))
            return ConstantVariable(equal is (compare is operator.eq))
        return tx.call(sequence_compare, [tx.wrap(compare, None), self, storage_of(other)])

    return compared


for _compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
    registry.methods(SEQUENCES, f"__{_compare.__name__}__")(_comparison(_compare))


# --- changing -----------------------------------------------------------------------------------------------------


def _written_index(tx: Tracer, cls: type, key: VariableTracker) -> Any:
    """Returns an index to write at, or a slice of a list."""
    index = expect_index(tx, key, cls.__name__)
    if isinstance(index, slice) and cls is deque:
        tx.raises(TypeError("a deque has no slices"))
    return index


def _append(tx: Tracer, items: Slots, item: VariableTracker, /) -> None:
    items.append(item)


def _appendleft(tx: Tracer, items: Slots, item: VariableTracker, /) -> None:
    items.insert(0, item)


def _insert(tx: Tracer, items: Slots, index: VariableTracker, item: VariableTracker, /) -> None:
    position = expect_index(tx, index, "list")
    if isinstance(position, slice):
        tx.raises(TypeError("'slice' object cannot be interpreted as an integer"))
    items.insert(position, item)


def _pop(tx: Tracer, items: Slots, index: VariableTracker | None = None, /) -> VariableTracker:
    position = -1 if index is None else expect_index(tx, index, "list")
    if isinstance(position, slice):
        tx.raises(TypeError("'slice' object cannot be interpreted as an integer"))
    try:
        return items.lazy_pop(position)
    except IndexError:
        tx.raises(IndexError("pop index out of range" if items else "pop from empty list"), exact=True)


def _popright(tx: Tracer, items: Slots, /) -> VariableTracker:
    if not items:
        tx.raises(IndexError("pop from an empty deque"), exact=True)
    return items.lazy_pop(-1)


def _popleft(tx: Tracer, items: Slots, /) -> VariableTracker:
    if not items:
        tx.raises(IndexError("pop from an empty deque"), exact=True)
    return items.lazy_pop(0)


def _clear(tx: Tracer, items: Slots, /) -> None:
    items.clear()


def _reverse(tx: Tracer, items: Slots, /) -> None:
    items.reverse()


@registry.methods(MUTABLE, "__setitem__")
@registry.accepts_lazy("value")
def _setitem(tx: Tracer, self: ListVariable, key: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    index = _written_index(tx, self.cls, key)
    new_value: Any = unpack_lazy(tx, value.realize()) if isinstance(index, slice) else value
    try:
        self.items[index] = new_value
    except (IndexError, ValueError) as error:
        if isinstance(self.items, LazyList):
            tx.raises(without_message(type(error)))
        # A list of equal length raises the error with Python's message.
        storage = self.cls([None] * len(self.items))
        try:
            storage[index] = [None] * len(new_value) if isinstance(index, slice) else None
        except (IndexError, ValueError) as python_error:
            tx.raises(python_error, exact=True)
        raise
    tx.side_effects.contents_changed(self)
    return none()


def _delitem(cls: type, tx: Tracer, items: Slots, key: VariableTracker, /) -> None:
    try:
        del items[_written_index(tx, cls, key)]
    except (IndexError, ValueError) as error:
        tx.raises(without_message(type(error)))


# The change that each method makes to the list of trackers.
_CHANGE_OF_METHOD: dict[type, dict[str, Callable[..., VariableTracker | None]]] = {
    list: {"append": _append, "insert": _insert, "pop": _pop, "clear": _clear, "reverse": _reverse},
    deque: {
        "append": _append,
        "appendleft": _appendleft,
        "insert": _insert,
        "pop": _popright,
        "popleft": _popleft,
        "clear": _clear,
        "reverse": _reverse,
    },
}


def _changing_handler(change: Callable[..., VariableTracker | None]) -> Callable[..., VariableTracker]:
    @functools.wraps(change)  # tracer/calls/call.py binds the arguments to the signature
    def changed(tx: Tracer, self: ListVariable, /, *args: VariableTracker) -> VariableTracker:
        if change is _insert and self.maxlen is not None and len(self.items) >= self.maxlen:
            tx.raises(IndexError("deque already at its maximum size"), exact=True)
        result = change(tx, self.items, *args)
        self.changes += 1
        lazy = isinstance(self.items, LazyList) and not self.items.is_read  # a lazy list applies `maxlen` itself
        if self.maxlen is not None and not lazy and len(self.items) > self.maxlen:
            del self.items[self.maxlen if change is _appendleft else 0]
        tx.side_effects.contents_changed(self)
        return none() if result is None else result

    return registry.accepts_lazy("item")(changed)


for _cls, _changes in _CHANGE_OF_METHOD.items():
    for _name, _change in _changes.items():
        registry.method(_cls, _name)(_changing_handler(_change))
    registry.method(_cls, "__delitem__")(_changing_handler(functools.partial(_delitem, _cls)))


class _TracedKey:
    """A sort key that is not a constant; its `__lt__` traces the comparison for `sorted`."""

    def __init__(self, tx: Tracer, variable: VariableTracker) -> None:
        self.tx = tx
        self.variable = variable

    def __lt__(self, other: _TracedKey) -> bool:
        return self.tx.truth(self.tx.call(operator.lt, [self.variable, other.variable]))


@registry.method(list, "sort")
def _sort(
    tx: Tracer,
    self: ListVariable,
    /,
    *,
    key: VariableTracker | None = None,
    reverse: VariableTracker | None = None,
) -> VariableTracker:
    by_item = key is None or (isinstance(key, ConstantVariable) and key.value is None)
    descending = reverse is not None and tx.truth(reverse)
    items = self.items.lazy()
    self.items.clear()  # keys and comparisons see an empty list
    try:
        found = [item.realize() if by_item or key is None else tx.call(key, [item]) for item in items]
    except Raised:
        self.items[:] = items
        raise
    try:
        known = all(is_constant(each) for each in found)
        keys = [as_constant(each) if known else _TracedKey(tx, each) for each in found]
        order = sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
        if self.items:
            tx.raises(ValueError("list modified during sort"))
    except TypeError as error:
        tx.raises(error)
    except Raised:
        why = "Only Python knows the order of a list after a comparison of its items fails."
        tx.break_graph("MD202", "the program raises an exception here", why=why)
    self.items[:] = [items[position] for position in order]
    tx.side_effects.contents_changed(self)
    return none()


# --- construction -------------------------------------------------------------------------------------------------


def _items(tx: Tracer, iterable: VariableTracker | None) -> list[VariableTracker]:
    """Returns the items for a new list or tuple."""
    if iterable is None:
        return []
    limit_copy(tx, iterable)
    return unpack_lazy(tx, iterable)


@registry.function(list)
def _list(tx: Tracer, iterable: VariableTracker | None = None, /) -> VariableTracker:
    return ListVariable(_items(tx, iterable))


@registry.function(deque)
def _deque(
    tx: Tracer, iterable: VariableTracker | None = None, maxlen: VariableTracker | None = None
) -> VariableTracker:
    length = None if maxlen is None else expect_constant(tx, maxlen, "`maxlen`")
    try:
        deque((), length)
    except (TypeError, ValueError, OverflowError) as error:
        tx.raises(error, exact=True)
    items = [] if iterable is None else unpack_lazy(tx, iterable)
    return ListVariable(_last_items(length, items), deque, maxlen=length)


@registry.attributes(ListVariable)
def _maxlen(tx: Tracer, obj: ListVariable, name: str) -> VariableTracker | None:
    return ConstantVariable(obj.maxlen) if obj.cls is deque and name == "maxlen" else None


@registry.function(tuple)
def _tuple(tx: Tracer, iterable: VariableTracker | None = None, /) -> VariableTracker:
    if isinstance(iterable, TupleVariable) and iterable.cls is tuple:
        return iterable
    return TupleVariable(_items(tx, iterable))


@registry.function(torch.Size)
def _size(tx: Tracer, iterable: VariableTracker | None = None, /) -> VariableTracker:
    items = [] if iterable is None else list(tx.unpack(iterable))
    for item in items:
        if not is_int_number(item) and not isinstance(expect_constant(tx, item, "a size"), int):
            tx.raises(TypeError("torch.Size() takes an iterable of 'int'"))
    return TupleVariable(items, torch.Size)


@registry.method(list, "__init__")
def _fill(tx: Tracer, self: ListVariable, iterable: VariableTracker | None = None, /) -> VariableTracker:
    items = _items(tx, iterable)
    self.items[:] = items
    tx.side_effects.contents_changed(self)
    return none()
