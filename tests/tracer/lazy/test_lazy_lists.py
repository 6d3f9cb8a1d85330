import collections

import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Item
from minidynamo.tracer.lazy.lazy_dicts import replayed_parts
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.objects import LazyVariable
from tests.tracer.wrapping import V, empty_graph, kinds


@pytest.fixture
def graph():
    return empty_graph()


def items_of(graph, value):
    items = wrap(graph, value, V).items
    assert isinstance(items, LazyList)
    return items


def test_what_is_added_asks_for_nothing(graph):
    items = items_of(graph, [1, 2])
    new = ConstantVariable(5)
    items.append(new)
    assert items[-1] is new and items.changes() == (None, [new]) and not items.is_read
    assert items.pop() is new and items.changes() == (None, [])
    items.clear()
    assert [*items] == [] and items.changes() == (0, [])
    assert kinds(graph) == [GuardKind.TYPE]


def test_elements_in_front_ask_for_nothing(graph):
    items = items_of(graph, [1, 2])
    one, two, last = ConstantVariable(5), ConstantVariable(6), ConstantVariable(7)
    items.insert(0, one)
    items.insert(0, two)
    items.append(last)
    assert items.prepended() == [two, one] and items.changes() == (None, [last])
    assert items[0] is two and items[1] is one and items[2].value == 1 and items[-1] is last and items[-2].value == 2
    assert items.lazy_length().now == 5 and kinds(graph) == [GuardKind.TYPE]
    assert items[-5] is two and items.prepended() == [] and items.changes()[0] == 0
    assert [item.value for item in items] == [6, 5, 1, 2, 7] and GuardKind.LENGTH in kinds(graph)


def test_the_first_elements_of_a_deque_with_a_limit_need_its_length(graph):
    items = items_of(graph, collections.deque([1, 2], maxlen=3))
    items.insert(0, ConstantVariable(5))
    assert items.is_read and items.prepended() == []


def test_all_elements_are_replaced_without_a_guard_on_their_number(graph):
    new = ConstantVariable(5)
    emptied, replaced, shortened = (items_of(empty_graph(), [1, 2]) for _ in range(3))
    del emptied[:]
    assert emptied.changes() == (0, []) and [value for _, value in emptied.lost_values()] == [1, 2]
    replaced[:] = [new]
    assert replaced.changes() == (0, [new]) and [*replaced] == [new]
    assert not any(GuardKind.LENGTH in kinds(each._graph) for each in (emptied, replaced))
    del shortened[1:]
    assert shortened.changes() == (1, []) and GuardKind.LENGTH in kinds(shortened._graph)


def test_elements_are_read_one_by_one(graph):
    items = items_of(graph, [1, 2.5, "text"])
    new = ConstantVariable(7)
    items.append(new)
    assert items[1].value == 2.5 and items[-2].value == "text" and items.pop() is new
    assert kinds(graph, Item(V, 1)) == kinds(graph, Item(V, -1)) == [GuardKind.EQUALS]
    assert kinds(graph, Item(V, 0)) == [] and kinds(graph) == [GuardKind.TYPE]
    with pytest.raises(IndexError):
        items[3]
    assert kinds(graph) == [GuardKind.TYPE, GuardKind.LENGTH]
    items[2] = new
    assert items.changes() == (2, [new])
    items.append(new)
    assert len(items) == 4 and items.changes() == (2, [new, new])
    assert items.pop(0).value == 1
    assert items.changes() == (0, [1, new, new]) and replayed_parts(items) == [new, new]
    items.reverse()
    assert [item.value for item in items] == [7, 7, 2.5]


def test_a_list_of_tensors_that_is_passed_is_read_together(graph):
    x, y = torch.ones(2), torch.ones(3)
    variable = wrap(graph, [x, y], V)
    variable.items.append(ConstantVariable(1))
    assert variable.original is None and not [*graph.guards][1:]
    first = variable.items[0]
    assert variable.original == (first, variable.items[1])
    assert variable.items.changes()[0] == 0  # the graph may clear the list, so all items are written again


def test_a_deque_keeps_its_length(graph):
    items = items_of(graph, collections.deque([1, 2, 3], maxlen=3))
    items.append(ConstantVariable(4))
    assert items.changes()[0] is None and items.lazy_length().now == 3 and items[-1].value == 4
    assert [item.value for item in items] == [2, 3, 4] and len(items) == 3
    assert items.changes() == (0, [1, 2, items[2]])


def test_items_are_handed_on_unread(graph):
    items = items_of(graph, (5, [6]))
    length = items.lazy_length()
    assert (length.real, length.added) == (2, 0)
    first = items[0]
    assert first.value == 5
    known, lazy = items.lazy()
    assert known is first and isinstance(lazy, LazyVariable)
    assert (lazy.value, lazy.source) == ([6], Item(V, 1))
    assert kinds(graph, Item(V, 0)) == [GuardKind.EQUALS] and kinds(graph) == [GuardKind.TYPE, GuardKind.LENGTH]
    assert items.lazy_length() is None


def test_nothing_is_read_when_the_trace_is_over(graph):
    items = items_of(graph, (5, 6))
    graph.values.forget()
    with pytest.raises(AssertionError, match="after the end of the trace"):
        items[1]
