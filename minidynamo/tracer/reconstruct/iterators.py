"""Owns how iterators are rebuilt: over the remaining items, or over the same container and advanced to their position.

Generators are not here: they are frames (`callables.py`)."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minidynamo.tracer.reachable import is_external
from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.containers import refill_once
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, cannot_rebuild, tuple_literal
from minidynamo.tracer.runtime.module_iterator import ModuleIterator
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, SetVariable, Slots
from minidynamo.variables.iterators import (
    NO_ITEMS,
    ChainIterator,
    DictIterator,
    EnumerateIterator,
    IndexIterator,
    MapIterator,
    SequenceIterator,
    SliceIterator,
    ZipIterator,
)

# Class of iterator -> (function that makes an iterator, class of the iterable). Iterators over ranges and text need all
# items at once.
_ITERABLES: dict[type, tuple[Callable[..., Any], type]] = {
    type(make(iterable())): (make, iterable)
    for make, iterable in ((iter, list), (iter, tuple), (iter, set), (iter, collections.deque))
}
_ITERABLES |= {type(reversed(iterable())): (reversed, iterable) for iterable in (tuple, list, collections.deque)}
_RANGES = (type(iter(range(0))), type(iter(range(2**70))))
_TEXTS = (type(iter("a")), type(iter(chr(233))))


def advance(iterator: Any, count: int) -> Any:
    """Returns the iterator, advanced by `count` items."""
    next(itertools.islice(iterator, count, count), None)
    return iterator


@builds(SequenceIterator, hint="iterator")
def _sequence_iterator(rebuild: Rebuilder, variable: SequenceIterator) -> str:
    sequence = variable.sequence
    if not isinstance(sequence, SequenceVariable):
        return _iterator_over(rebuild, variable.cls, sequence.lazy_slice(slice(variable.position, None)))
    is_reversed = variable.cls is type(reversed([]))
    make = rebuild.constant(reversed if is_reversed else iter)
    text = f"{make}({rebuild.value(sequence)})"
    if not is_reversed and variable.position == 0:
        return text
    # The position is set after the list has its final contents: list iterators clip it to the length.
    name = rebuild.assign("iterator", text)
    if variable.cls in (type(iter([])), type(reversed([]))):
        rebuild.final_lines.append(f"{name}.__setstate__({variable.position})")
    else:
        rebuild.final_lines.append(f"{rebuild.constant(advance)}({name}, {variable.position})")
    return name


def _iterator_over(rebuild: Rebuilder, cls: type, items: Sequence[VariableTracker]) -> str:
    """Returns a new iterator of the class over the items."""
    holds_constants = cls in (*_RANGES, *_TEXTS, type(iter(b"")))
    values: Any = [item.value for item in items if isinstance(item, ConstantVariable)] if holds_constants else []
    make = iter
    if cls in _RANGES:
        step = values[1] - values[0] if len(values) > 1 else 1
        text = repr(range(values[0], values[-1] + step, step)) if values else "range(0)"
    elif cls in _TEXTS:
        text = "".join(values)
        if text.isascii() and cls is not _TEXTS[0]:  # a character before the text keeps the class
            return f"{rebuild.constant(advance)}({rebuild.constant(iter)}({chr(233) + text!r}), 1)"
        text = repr(text)
    elif cls is type(iter(b"")):
        text = repr(bytes(values))
    elif cls in _ITERABLES:
        make, iterable = _ITERABLES[cls]
        in_order = items[::-1] if make is reversed else items
        text = tuple_literal([rebuild.value(item) for item in in_order])
        text = text if iterable is tuple else f"{rebuild.constant(iterable)}({text})"
    else:
        raise cannot_rebuild(SequenceIterator(Slots(items), cls=cls))
    return f"{rebuild.constant(make)}({text})"


class _SequenceWithLength:
    """The sequence of a rebuilt `reversed` iterator: `reversed` reads `length`, later code the real one."""

    def __init__(self, sequence: Any, length: int) -> None:
        self.sequence, self.lengths = sequence, [length]

    def __len__(self) -> int:
        return self.lengths.pop() if self.lengths else len(self.sequence)

    def __getitem__(self, position: int) -> Any:
        return self.sequence[position]


def _index_iterator_at(sequence: Any, position: int) -> Iterator[Any]:
    iterator: Any = iter(sequence)
    iterator.__setstate__(position)
    return iterator  # type: ignore[no-any-return]


def _reversed_iterator_at(sequence: Any, position: int) -> Iterator[Any]:
    return reversed(_SequenceWithLength(sequence, position + 1))


@builds(IndexIterator, hint="iterator")
def _index_iterator(rebuild: Rebuilder, variable: IndexIterator) -> str:
    if variable.sequence is None:
        if variable.cls is reversed:
            return f"{rebuild.constant(reversed)}(())"
        return f"{rebuild.constant(advance)}({rebuild.constant(iter)}({rebuild.constant(NO_ITEMS)}), 1)"
    create = _reversed_iterator_at if variable.cls is reversed else _index_iterator_at
    return f"{rebuild.constant(create)}({rebuild.value(variable.sequence)}, {variable.position})"


@builds(DictIterator, hint="iterator")
def _dict_iterator(rebuild: Rebuilder, variable: DictIterator) -> str:
    if variable.only_on_stack:
        make = rebuild.constant(ModuleIterator)
        return rebuild.assign("iterator", f"{make}({rebuild.value(variable.mapping)}, {variable.position})")
    make = rebuild.constant(reversed if variable.is_reversed else iter)
    view = "" if variable.kind == "keys" else f".{variable.kind}()"
    if not variable.keys:  # exhausted for good
        kinds = (collections.OrderedDict, set, frozenset)
        cls = variable.mapping.cls if variable.mapping.cls in kinds else dict
        return f"{make}({rebuild.constant(cls)}(){view})"
    if isinstance(variable.mapping, SetVariable) and variable.mapping.source is None:
        remaining = rebuild.values(key.variable for key in variable.keys[variable.position :])
        return rebuild.assign("iterator", f"{make}([{remaining}])")
    # The dict must have its final contents: the iterator keeps its length.
    if is_external(variable.mapping) and rebuild.side_effects.is_changed(variable.mapping):
        rebuild.lines += refill_once(rebuild, variable.mapping)
    text = f"{make}({rebuild.value(variable.mapping)}{view})"
    if variable.position:
        text = f"{rebuild.constant(advance)}({text}, {variable.position})"
    return rebuild.assign("iterator", text)


@builds(ZipIterator)
def _zip(rebuild: Rebuilder, variable: ZipIterator) -> str:
    arguments = [rebuild.value(iterator) for iterator in variable.iterators] + ["strict=True"] * variable.strict
    return f"{rebuild.constant(zip)}({', '.join(arguments)})"


@builds(EnumerateIterator)
def _enumerate(rebuild: Rebuilder, variable: EnumerateIterator) -> str:
    start = f", {variable.count}" if variable.count else ""
    return f"{rebuild.constant(enumerate)}({rebuild.value(variable.iterator)}{start})"


@builds(MapIterator)
def _map(rebuild: Rebuilder, variable: MapIterator) -> str:
    arguments = rebuild.values((variable.function, *variable.iterators))
    return f"{rebuild.constant(filter if variable.filtering else map)}({arguments})"


@builds(ChainIterator)
def _chain(rebuild: Rebuilder, variable: ChainIterator) -> str:
    chain = rebuild.constant(itertools.chain)
    rest = rebuild.value(variable.iterables)
    if variable.current is not None:
        rest = f"{chain}(({rebuild.value(variable.current)},), {rest})"
    return f"{chain}.from_iterable({rest})"


@builds(SliceIterator)
def _islice(rebuild: Rebuilder, variable: SliceIterator) -> str:
    islice = rebuild.constant(itertools.islice)
    if variable.iterator is None:
        return f"{islice}((), 0)"
    start, end = variable.next_index - variable.position, None
    if variable.stop is not None:
        end = variable.stop - variable.position
        start = min(start, end)
    return f"{islice}({rebuild.value(variable.iterator)}, {start}, {end}, {variable.step})"
