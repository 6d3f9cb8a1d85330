import collections

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.objects import ObjectVariable
from tests.tracer.wrapping import V, assert_wrapped, empty_graph


class Words(list):
    pass


class Recent(collections.deque):
    pass


class Names:
    def constant(self, value, hint):
        return hint


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
