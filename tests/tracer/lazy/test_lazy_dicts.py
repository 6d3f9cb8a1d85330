import pytest

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Called, Constant, Item, Local
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.base import ConstantVariable
from tests.tracer.wrapping import V, empty_graph, kinds


@pytest.fixture
def graph():
    return empty_graph()


def key(value):
    return key_of(ConstantVariable(value))


def items_of(graph, value):
    items = wrap(graph, value, V).items
    assert isinstance(items, LazyDict)
    return items


def test_keys_are_asked_for_one_by_one(graph):
    table = items_of(graph, {"a": 1, "b": [2], 3: None})
    assert key("a") in table and key("z") not in table and table[key("b")] is wrap(graph, None, Item(V, "b"))
    assert kinds(graph) == [GuardKind.TYPE, GuardKind.HAS_KEY, GuardKind.MISSING_KEY, GuardKind.HAS_KEY]
    assert kinds(graph, Item(V, "a")) == []
    new = ConstantVariable(9)
    table[key("z")] = new
    del table[key("a")]
    with pytest.raises(KeyError):
        del table[key("a")]
    assert not table.is_read and [*table.written] == [key("z")] and [*table.removed] == [key("a")]
    assert [k.token for k in table] == ["b", 3, "z"] and len(table) == 3
    assert kinds(graph)[-1] is GuardKind.DICT_KEYS
    table[key("a")] = new  # added again at the end
    assert [k.token for k in table] == ["b", 3, "z", "a"]
    table[key("b")] = new
    assert [k.token for k in table] == ["b", 3, "z", "a"] and next(reversed(table)).token == "a"


def test_a_cleared_table_was_not_asked(graph):
    table = items_of(graph, {"a": 1})
    table.clear()
    table[key("b")] = ConstantVariable(2)
    assert [k.token for k in table] == ["b"] and key("a") not in table
    assert kinds(graph) == [GuardKind.TYPE]


def test_keys_that_are_no_plain_values_ask_for_all(graph):
    class Thing:
        pass

    thing = Thing()
    table = items_of(graph, {thing: 1})
    assert key_of(wrap(graph, thing, Attr(Local("owner"), "thing"))) in table
    assert kinds(graph)[-1] is GuardKind.DICT_KEYS


def test_an_argument_is_looked_up_where_it_comes_in(graph):
    class Thing:
        pass

    here, not_here, nothing = Thing(), Thing(), Thing()
    table = items_of(graph, {here: "text", nothing: None})
    place = Called(Constant(dict.get, "dict.get"), (V, Local("here")))
    known = key_of(wrap(graph, here, Local("here")))
    assert known in table and table[known].source == place
    assert kinds(graph, place) == [GuardKind.TYPE]  # so it is there
    assert key_of(wrap(graph, not_here, Local("not_here"))) not in table
    relations = [(guard.source.display(), guard.expected) for guard in graph.guards if guard.kind is GuardKind.RELATION]
    assert relations == [("not_here in v", False)]
    assert kinds(graph) == [GuardKind.TYPE] and not table.is_read
    assert key_of(wrap(graph, nothing, Local("nothing"))) in table and table.is_read


def test_elements_of_a_set(graph):
    table = items_of(graph, {1, 2})
    assert key(1) in table and key(7) not in table
    assert kinds(graph) == [GuardKind.TYPE, GuardKind.HAS_KEY, GuardKind.MISSING_KEY]
    assert {k.token for k in table} == {1, 2} and kinds(graph)[-1] is GuardKind.SET_ITEMS
