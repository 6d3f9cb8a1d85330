"""Tests of minidynamo/tracer/graph/inputs.py: one tracker for an object, whatever path leads to it; placeholders and
their guards."""

from __future__ import annotations

import builtins

import pytest
import torch

import minidynamo
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Item, Local
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.graph.inputs import KnownValues
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable

X, Y = Local("x"), Local("y")


class Thing:
    pass


def test_a_remembered_object_is_known_by_identity_and_by_its_place():
    values, thing = KnownValues(), Thing()
    variable = ObjectVariable(thing, Thing, source=X)
    values.record_object(thing, variable)
    values.record_at(Y, variable)
    assert values.of(thing) is values.at(X) is values.at(Y) is variable
    assert values.of(Thing()) is None and values.at(Local("z")) is None


def test_the_id_of_a_remembered_object_stays_its_own():
    values = KnownValues()
    for _ in range(20):
        values.record_object(thing := Thing(), OpaqueVariable(thing))
        del thing
    assert all(values.of(Thing()) is None for _ in range(20))


def test_constants_are_known_by_their_place_alone():
    values = KnownValues()
    values.record_at(X, ConstantVariable(3, source=X))
    assert values.at(X) and values.of(3) is None and values.external_values() == []


def test_what_lives_outside_is_listed_once_and_in_order():
    values, first, second, made = KnownValues(), Thing(), Thing(), Thing()
    one, two = ObjectVariable(first, Thing, source=X), ObjectVariable(second, Thing, source=Y)
    for value, variable in ((second, two), (first, one), (second, two), (made, ObjectVariable(made, Thing))):
        values.record_object(value, variable)
    assert values.external_values() == [two, one]


def test_a_namespace_has_one_owner():
    values, thing, namespace = KnownValues(), Thing(), {}
    owner, other = ObjectVariable(thing, Thing, source=X), ObjectVariable(Thing(), Thing, source=Y)
    assert values.claim_namespace(namespace, owner) is owner is values.claim_namespace(namespace, owner)
    assert values.claim_namespace(namespace, other) is owner
    assert values.owner_of(namespace) is owner and values.owner_of({}) is None
    plain, known = {}, DictVariable({}, source=Y)
    values.record_object(plain, known)
    assert values.claim_namespace(plain, owner) is known


def test_nothing_is_known_behind_the_end():
    values, thing = KnownValues(), Thing()
    values.record_object(thing, ObjectVariable(thing, Thing, source=X))
    values.forget()
    assert values.of(thing) is None and values.at(X) is None and values.external_values() == []


def made(**places):
    return OutputGraph(lambda: None, **places)


def test_placeholders_are_named_after_their_places_and_stand_in_front():
    graph = made()
    x = graph.inputs.tensor(torch.ones(2), Local("x"))
    graph.emit(torch.sin, [x], {})
    graph.inputs.tensor(torch.zeros(2), Attr(Local("x"), "y"))
    graph.inputs.tensor(torch.zeros(2), Item(Local("xs"), 0))
    graph.inputs.tensor(torch.zeros(2), Local("x_y"))
    assert [node.name for node in graph.graph.nodes] == ["x", "x_y", "xs_0", "x_y_1", "sin"]


def test_arguments_are_locals_and_items_of_the_starred_ones():
    graph = made(starred=frozenset([Local("args")]))
    assert graph.inputs.is_argument(Local("x")) and graph.inputs.is_argument(Item(Local("args"), 0))
    assert not graph.inputs.is_argument(Item(Local("x"), 0)) and not graph.inputs.is_argument(Attr(Local("x"), "y"))


def test_inputs_that_nobody_uses_go():
    graph = made()
    x, _ = (graph.inputs.tensor(torch.ones(2), Local(name)) for name in "xy")
    module, inputs = graph.finish([graph.emit(torch.sin, [x], {})], [])
    assert [given.source for given in inputs] == [Local("x")]
    assert [node.name for node in module.graph.nodes if node.op == "placeholder"] == ["x"]


@pytest.mark.parametrize("change", ["transpose_", "requires_grad_"])
def test_an_example_shows_the_input_as_it_arrives(change):
    graph = made()
    x = graph.inputs.tensor(torch.ones(2, 3), Local("x"))
    arguments = [ConstantVariable(0), ConstantVariable(1)] if change == "transpose_" else []
    graph.emit(change, [x, *arguments], {})
    _, inputs = graph.finish([graph.emit("mul", [x, x], {})], [])
    example = inputs[0].node.meta["example_value"]
    assert example.shape == (2, 3) and not example.requires_grad and example is not x.fake


def list_of(graph, value):
    variable = ListVariable([], source=Local("xs"))
    graph.values.record_object(value, variable)
    variable.items = graph.inputs.list_of_tensors(value, variable, {})
    variable.original = tuple(variable.items)
    return variable


@pytest.mark.parametrize("how", ["kept", "emptied", "given up by the user"])
def test_a_list_that_lost_elements_is_given_up(how):
    graph = made(steal=frozenset([Local("xs")] if how == "given up by the user" else []))
    xs = list_of(graph, [torch.ones(2), torch.zeros(2)])
    result = graph.emit(torch.add, xs.items, {})
    if how == "emptied":
        xs.items = xs.items[1:]
    _, inputs = graph.finish([result], [xs])
    assert inputs[0].is_emptied == (how != "kept")
    assert ("steal_arg" in inputs[0].node.meta) == (how != "kept")


def distinct(graph):
    return [(g.source, g.expected) for g in graph.guards if g.kind is GuardKind.DISTINCT_OBJECTS]


def test_the_tensors_of_a_graph_are_different_objects():
    graph = made()
    x, _, z = (graph.inputs.tensor(torch.ones(2), Local(name)) for name in "xyz")
    graph.finish([graph.emit(torch.add, [x, z], {})], [])
    assert distinct(graph) == [(Local("x"), (Local("z"),))]


def test_so_are_those_whose_identity_was_asked_for():
    graph = made()
    x, y = (graph.inputs.tensor(torch.ones(2), Local(name)) for name in "xy")
    graph.identity_keys |= {x: None, y: None}
    graph.finish([graph.emit(torch.sin, [x], {})], [])
    assert distinct(graph) == [(Local("x"), (Local("y"),))]


def test_no_input_leads_to_a_real_tensor_behind_the_end():
    graph, value = made(), torch.ones(2)
    x = graph.inputs.tensor(value, Local("x"))
    assert graph.real(x) is value
    graph.forget_values()
    assert graph.real(x) is None and "source" not in x.node.meta


def test_a_placeholder_hides_nothing_that_the_graph_calls():
    def program(x, abs, torch, m):
        return x * 2, builtins.abs(abs - m), torch + m

    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return minidynamo.make_boxed_func(gm.forward)

    compiled = minidynamo.compile(program, backend=backend)
    x = torch.ones(2)
    for n in range(4):
        assert compiled(x, n, n, 7)[1:] == program(x, n, n, 7)[1:]
    assert all(n.target == n.name for gm in graphs for n in gm.graph.nodes if n.op == "placeholder")


@pytest.mark.parametrize("program", [lambda self: (self.mul_(2), self.exp()), lambda self, i: self[i]])
def test_a_tensor_may_be_the_argument_self(program):
    """Programs over some of a graph's inputs take it as any other."""
    places = [torch.tensor([1, 3])] * (program.__code__.co_argcount - 1)
    assert_same_as_eager(program, lambda: (torch.ones(5), *places), graphs=1, breaks=0)
