import collections
import sys

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable
from tests.tracer.wrapping import assert_wrapped

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


def test_trackers_and_their_guards():
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
