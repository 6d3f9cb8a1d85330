from minidynamo.guards.guard import GuardKind
from minidynamo.variables.containers import SetVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable
from tests.tracer.wrapping import assert_wrapped


class Tags(set):
    pass


class Key:
    def __hash__(self):
        return 1


def test_trackers_and_their_guards():
    for value in ({1}, frozenset({1, ("a", None)})):
        assert_wrapped(value, SetVariable, {GuardKind.TYPE, GuardKind.SET_ITEMS})
    assert_wrapped(Tags({1}), ObjectVariable, {GuardKind.TYPE, GuardKind.SET_ITEMS})


def test_elements_that_cannot_be_tracked_make_the_set_opaque():
    for value in ({Key()}, Tags({Key()})):
        assert_wrapped(value, OpaqueVariable, {GuardKind.TYPE})
