"""Rebuilt iterators continue at the program's position."""

import collections
from collections.abc import Iterator

import pytest

from minidynamo.tracer.reconstruct.iterators import advance
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import ListVariable, Slots
from minidynamo.variables.iterators import EnumerateIterator, MapIterator, SequenceIterator, ZipIterator
from tests.tracer.reconstruct.rebuilt import C, rebuilt


def test_an_iterator_over_a_list_sees_later_changes() -> None:
    items = ListVariable([C(1), C(2), C(3)])
    iterator, made = rebuilt(SequenceIterator(items, 1), items)
    assert next(iterator) == 2
    made.append(4)
    assert list(iterator) == [3, 4]


def test_reversed_iterators_count_down() -> None:
    assert list(rebuilt(SequenceIterator(ListVariable([C(1), C(2), C(3)]), 1, type(reversed([]))))) == [2, 1]


def test_iterators_over_deques_and_fixed_items() -> None:
    deque = ListVariable([C(1), C(2), C(3)], collections.deque)
    assert list(rebuilt(SequenceIterator(deque, 2, type(iter(collections.deque()))))) == [3]
    assert list(rebuilt(SequenceIterator(Slots([C(1), C(2), C(3)]), 1))) == [2, 3]
    assert list(rebuilt(SequenceIterator(Slots([C(1)]), 1))) == []


def test_iterators_of_iterators_share_them() -> None:
    inner = SequenceIterator(ListVariable([C(1), C(2), C(3)]), 1)
    assert list(rebuilt(EnumerateIterator(inner, 5))) == [(5, 2), (6, 3)]
    assert list(rebuilt(ZipIterator([inner, inner]))) == [(2, 3)]
    assert list(rebuilt(MapIterator(BuiltinVariable(str), [inner]))) == ["2", "3"]
    keep = MapIterator(BuiltinVariable(bool), [SequenceIterator(Slots([C(0), C(1)]))], filtering=True)
    assert list(rebuilt(keep)) == [1]
    strict = rebuilt(ZipIterator([SequenceIterator(Slots([C(1)])), SequenceIterator(Slots())], strict=True))
    with pytest.raises(ValueError, match="shorter"):
        list(strict)


def test_advance_skips_items() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    assert list(advance(numbers(), 3)) == [3, 4]
    assert list(advance(numbers(), 0)) == [0, 1, 2, 3, 4]
