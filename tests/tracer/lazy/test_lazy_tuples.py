import collections

import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Item, StorageItem
from minidynamo.tracer.lazy.lazy_tuples import LazyTuple
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.objects import LazyVariable
from tests.tracer.wrapping import V, empty_graph

Pair = collections.namedtuple("Pair", "first second")


@pytest.fixture
def graph():
    return empty_graph()


def items_of(graph, value):
    items = wrap(graph, value, V).items
    assert isinstance(items, LazyTuple)
    return items


def guarded(graph):
    """Returns the guards on the tuple's contents, except guards on classes."""
    of_classes = (GuardKind.TYPE, GuardKind.CLASS_NAMES)
    return [(guard.source, guard.kind) for guard in graph.guards if guard.kind not in of_classes]


@pytest.mark.parametrize(
    ("value", "place"), [((1, "a", 2), Item), (Pair(1, "a"), Item), (torch.Size([1, 2]), StorageItem)]
)
def test_only_what_is_asked_for_is_read(graph, value, place):
    items = items_of(graph, value)
    assert items[0].value == 1 and items[-1].value == value[-1] and items[0] is items[0]
    more = (tuple,) if place is StorageItem else ()
    assert guarded(graph) == [(place(V, 0, *more), GuardKind.EQUALS), (place(V, -1, *more), GuardKind.EQUALS)]


@pytest.mark.parametrize(
    ("part", "places"),
    [(slice(2), [0, 1]), (slice(1, 2), [1]), (slice(-2, None), [-2, -1]), (slice(0, 0), []), (slice(3), [0, 1, 2])],
)
def test_slices_that_count_from_one_end_do_not_ask_for_the_length(graph, part, places):
    items = items_of(graph, (5, 6, 7))
    assert [item.value for item in items[part]] == [*(5, 6, 7)[part]]
    assert guarded(graph) == [(Item(V, place), GuardKind.EQUALS) for place in places]


@pytest.mark.parametrize(
    "part", [slice(1, None), slice(-1), slice(5), slice(None, None, 2), slice(-1, 3), slice(-5, None)]
)
def test_others_do(graph, part):
    items = items_of(graph, (5, 6, 7))
    assert [item.value for item in items[part]] == [*(5, 6, 7)[part]]
    assert guarded(graph)[0] == (V, GuardKind.LENGTH)


@pytest.mark.parametrize("index", [3, -4])
def test_an_item_that_is_not_there_is_known_by_the_length(graph, index):
    items = items_of(graph, (5, 6, 7))
    with pytest.raises(IndexError):
        items[index]
    assert guarded(graph) == [(V, GuardKind.LENGTH)]


def test_items_are_handed_on_unread(graph):
    items = items_of(graph, (5, [6]))
    first = items[0]
    assert first.value == 5
    known, lazy = items.lazy()
    assert known is first and isinstance(lazy, LazyVariable)
    assert (lazy.value, lazy.source) == ([6], Item(V, 1))
    assert guarded(graph) == [(Item(V, 0), GuardKind.EQUALS), (V, GuardKind.LENGTH)]
    length = items.lazy_length()
    assert (length.there, length.more) == (2, 0)


def test_nothing_is_read_when_the_trace_is_over(graph):
    items = items_of(graph, (5, 6))
    first = items[0]
    graph.values.forget()
    assert items[0] is first
    with pytest.raises(AssertionError, match="after the end of the trace"):
        items[1]
