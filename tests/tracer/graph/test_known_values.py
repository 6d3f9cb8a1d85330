"""Tests of minidynamo/tracer/graph/known_values.py: one tracker for an object, whatever path leads to the object."""

from minidynamo.guards.source import Local
from minidynamo.tracer.graph.known_values import KnownValues
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable

X, Y = Local("x"), Local("y")


class Thing:
    pass


def test_a_remembered_object_is_known_by_identity_and_by_its_place():
    values, thing = KnownValues(), Thing()
    variable = ObjectVariable(thing, Thing, source=X)
    values.remember(thing, variable)
    values.place(Y, variable)
    assert values.of(thing) is values.at(X) is values.at(Y) is variable
    assert values.of(Thing()) is None and values.at(Local("z")) is None


def test_the_id_of_a_remembered_object_stays_its_own():
    values = KnownValues()
    for _ in range(20):
        values.remember(thing := Thing(), OpaqueVariable(thing))
        del thing
    assert all(values.of(Thing()) is None for _ in range(20))


def test_constants_are_known_by_their_place_alone():
    values = KnownValues()
    values.place(X, ConstantVariable(3, source=X))
    assert values.at(X) and values.of(3) is None and values.external_values() == []


def test_what_lives_outside_is_listed_once_and_in_order():
    values, first, second, made = KnownValues(), Thing(), Thing(), Thing()
    one, two = ObjectVariable(first, Thing, source=X), ObjectVariable(second, Thing, source=Y)
    for value, variable in ((second, two), (first, one), (second, two), (made, ObjectVariable(made, Thing))):
        values.remember(value, variable)
    assert values.external_values() == [two, one]


def test_a_namespace_has_one_owner():
    values, thing, namespace = KnownValues(), Thing(), {}
    owner, other = ObjectVariable(thing, Thing, source=X), ObjectVariable(Thing(), Thing, source=Y)
    assert values.claim_namespace(namespace, owner) and values.claim_namespace(namespace, owner)
    assert not values.claim_namespace(namespace, other)
    assert values.is_namespace(namespace) and not values.is_namespace({})
    plain = {}
    values.remember(plain, DictVariable({}, source=Y))
    assert not values.claim_namespace(plain, owner)


def test_nothing_is_known_behind_the_end():
    values, thing = KnownValues(), Thing()
    values.remember(thing, ObjectVariable(thing, Thing, source=X))
    values.forget()
    assert values.of(thing) is None and values.at(X) is None and values.external_values() == []
