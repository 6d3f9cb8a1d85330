"""Tests of minidynamo/tracer/wrappers/containers.py: the trackers and guards of containers, and their parts."""

from __future__ import annotations

import collections
import sys

import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Item, Local, SubclassItem
from minidynamo.tracer.wrap import wrap
from minidynamo.tracer.wrappers.containers import is_key, item_source, size_of
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable
from tests.tracer.wrapping import V, assert_wrapped, empty_graph


class Names:
    def constant(self, value, hint):
        return hint


class Key:
    def __hash__(self):
        return 1


def test_keys_can_be_tracked_if_nothing_of_the_user_compares_them():
    assert all(map(is_key, ["a", 1, None, (1, ("a",)), Names, Names()]))
    assert not any(map(is_key, [Key(), (1, Key())]))


def test_what_a_subclass_defines_is_passed_by():
    assert item_source(V, list, True)(0) == Item(V, 0) and item_source(V, list, False)(0) == SubclassItem(V, 0, list)
    assert size_of(V, list, True).expression(Names()) == size_of(V, list, False).expression(Names()) == "len(v)"
    assert size_of(V, list, True) != size_of(V, list, False)


class Words(list):
    pass


class Recent(collections.deque):
    pass


def test_trackers_and_their_guards():
    for value in ([1], collections.deque([1], maxlen=3)):
        assert_wrapped(value, ListVariable, {GuardKind.TYPE, GuardKind.LENGTH})
    for value in (Words([1]), Recent([1])):
        assert_wrapped(value, ObjectVariable, {GuardKind.TYPE, GuardKind.LENGTH})


def test_a_list_may_hold_itself():
    loop = []
    loop.append(loop)
    variable = wrap(empty_graph(), loop, V)
    assert [*variable.items] == [variable]


def test_contents_are_read_through_the_base_class():
    variable = wrap(empty_graph(), Words([7]), Local("w"))
    assert variable.storage.items[0].value == 7
    assert "list" in variable.storage.items[0].source.expression(Names())


def test_one_tensor_under_two_positions_is_one_tracker():
    x = torch.ones(2)
    first, second = wrap(empty_graph(), [x, x], V).items
    assert first is second


Pair = collections.namedtuple("Pair", "a b")


class Path(tuple):
    pass


class Sized(Pair):
    __slots__ = ()

    def __len__(self):
        return 5


class Tagged(Pair):
    pass


class Named(Pair):
    __slots__ = ()

    def total(self):
        return self.a + self.b


def test_trackers_and_their_guards_of_tuples():
    for value in ((1,), Pair(1, 2), torch.Size([1])):
        assert_wrapped(value, TupleVariable, {GuardKind.TYPE, GuardKind.LENGTH})
    assert_wrapped(Path((1,)), ObjectVariable, {GuardKind.TYPE, GuardKind.LENGTH})


def test_namedtuples_that_are_more_than_their_items_are_objects():
    assert_wrapped(Named(1, 2), TupleVariable, {GuardKind.TYPE})
    for value in (Sized(1, 2), Tagged(1, 2)):
        assert_wrapped(value, ObjectVariable, {GuardKind.TYPE})


def test_structures_made_in_c_are_tuples_where_they_are_known():
    for value in (torch.ones(1, 1).max(1), sys.version_info):
        assert_wrapped(value, TupleVariable, {GuardKind.TYPE})
    assert_wrapped(sys.flags, OpaqueVariable, {GuardKind.TYPE})


class Options(dict):
    pass


@pytest.mark.parametrize(
    ("value", "tracker", "kind"),
    [
        ({"a": 1}, DictVariable, GuardKind.DICT_KEYS),
        ({}, DictVariable, GuardKind.LENGTH),
        (collections.OrderedDict(a=1), DictVariable, GuardKind.DICT_KEYS),
        (collections.defaultdict(list, a=1), DictVariable, GuardKind.DICT_KEYS),
        ({(1, "a"): 1, Options: 2}, DictVariable, GuardKind.DICT_KEYS),
        ({torch.ones(1): 1}, DictVariable, GuardKind.LENGTH),
        (Options(a=1), ObjectVariable, GuardKind.DICT_KEYS),
    ],
)
def test_trackers_and_their_guards_of_dicts(value, tracker, kind):
    assert_wrapped(value, tracker, {GuardKind.TYPE, kind})


@pytest.mark.parametrize("value", [{Key(): 1}, globals(), vars(Options).copy() | dict.fromkeys(range(20_001))])
def test_what_cannot_be_tracked_is_opaque(value):
    assert_wrapped(value, OpaqueVariable, {GuardKind.TYPE})


class Tags(set):
    pass


def test_trackers_and_their_guards_of_sets():
    for value in ({1}, frozenset({1, ("a", None)})):
        assert_wrapped(value, SetVariable, {GuardKind.TYPE, GuardKind.SET_ITEMS})
    assert_wrapped(Tags({1}), ObjectVariable, {GuardKind.TYPE, GuardKind.SET_ITEMS})


def test_elements_that_cannot_be_tracked_make_the_set_opaque():
    for value in ({Key()}, Tags({Key()})):
        assert_wrapped(value, OpaqueVariable, {GuardKind.TYPE})
