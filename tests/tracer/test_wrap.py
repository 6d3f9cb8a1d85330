import collections
import datetime
import functools
import sys

import numpy as np
import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.callables import BoundBuiltin, FunctionVariable, MethodVariable, PartialVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import (
    ClassVariable,
    ModuleVariable,
    ObjectVariable,
    OpaqueVariable,
    PythonModuleVariable,
)
from minidynamo.variables.tensors import TensorVariable


class Plain:
    def method(self):
        return self


class Words(list):
    pass


class Options(dict):
    pass


Pair = collections.namedtuple("Pair", "a b")


@pytest.fixture
def graph():
    return OutputGraph(lambda: None)


@pytest.mark.parametrize(
    ("value", "tracker", "kinds"),
    [
        (5, ConstantVariable, {GuardKind.EQUALS}),
        (None, ConstantVariable, {GuardKind.IDENTITY}),
        (torch.float32, ConstantVariable, {GuardKind.IDENTITY}),
        (slice(1, 2), ConstantVariable, {GuardKind.EQUALS}),
        (torch.ones(2), TensorVariable, {GuardKind.TYPE}),
        (torch.ones(2).to_sparse(), OpaqueVariable, {GuardKind.TYPE}),
        ([1], ListVariable, {GuardKind.TYPE, GuardKind.LENGTH}),
        ((1,), TupleVariable, {GuardKind.TYPE, GuardKind.LENGTH}),
        (Pair(1, 2), TupleVariable, {GuardKind.TYPE, GuardKind.LENGTH}),
        ({"a": 1}, DictVariable, {GuardKind.TYPE, GuardKind.DICT_KEYS}),
        ({}, DictVariable, {GuardKind.TYPE, GuardKind.LENGTH}),
        ({1}, SetVariable, {GuardKind.TYPE, GuardKind.SET_ITEMS}),
        (Words([1]), ObjectVariable, {GuardKind.TYPE, GuardKind.LENGTH}),
        (Options(a=1), ObjectVariable, {GuardKind.TYPE, GuardKind.DICT_KEYS}),
        (Plain(), ObjectVariable, {GuardKind.TYPE}),
        (Plain().method, MethodVariable, {GuardKind.TYPE}),
        ([].append, BoundBuiltin, {GuardKind.TYPE}),
        (torch.nn.Linear(1, 1), ModuleVariable, {GuardKind.TYPE}),
        (Plain, ClassVariable, {GuardKind.IDENTITY}),
        (torch, PythonModuleVariable, {GuardKind.IDENTITY}),
        (functools.partial(max, 1), PartialVariable, {GuardKind.TYPE}),
        (collections.deque([1], maxlen=3), ListVariable, {GuardKind.TYPE, GuardKind.LENGTH}),
        (iter([1]), OpaqueVariable, {GuardKind.TYPE}),
        (datetime.date(2024, 1, 1), ConstantVariable, {GuardKind.EQUALS}),
        (np.float32(1), ConstantVariable, {GuardKind.EQUALS}),
        (np.ones(1), OpaqueVariable, {GuardKind.TYPE}),
        (sys.version_info, TupleVariable, {GuardKind.TYPE}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trackers_and_their_guards(graph, value, tracker, kinds):
    variable = wrap(graph, value, Local("v"))
    assert type(variable) is tracker and variable.python_type is type(value)
    contents = getattr(variable, "storage", None) or variable
    [*getattr(contents, "items", ())]  # what is in a container is read, and guarded, when it is asked for
    getattr(contents, "value", None)  # and so is what a constant is
    assert kinds <= {guard.kind for guard in graph.guards if guard.source == Local("v")}
    assert wrap(graph, value, Local("v")) is variable


def test_one_object_has_one_tracker(graph):
    x = torch.ones(2)
    first = wrap(graph, x, Local("x"))
    assert wrap(graph, x, Local("y")) is first
    assert graph.guards[-1].kind is GuardKind.SAME_OBJECT and graph.guards[-1].expected == Local("x")
    assert wrap(graph, [x, [x]], Local("xs")).items[0] is first


def test_a_list_may_hold_itself(graph):
    loop = []
    loop.append(loop)
    variable = wrap(graph, loop, Local("loop"))
    assert [*variable.items] == [variable]


def test_functions_by_identity_where_they_stay_and_by_code_where_they_come_and_go(graph):
    function = wrap(graph, lambda x, y=[]: x, Local("f"))
    assert isinstance(function, FunctionVariable)
    assert {guard.source.display() for guard in graph.guards} >= {"f.__code__"}
    assert wrap(graph, len, None).value is len and wrap(graph, Plain, None).value is Plain


def test_contents_are_read_through_the_base_class(graph):
    variable = wrap(graph, Words([7]), Local("w"))
    assert variable.storage.items[0].value == 7
    assert "list" in variable.storage.items[0].source.expression(Names())


class Names:
    def constant(self, value, hint):
        return hint


def test_keys_that_cannot_be_tracked_make_the_dict_opaque(graph):
    class Key:
        def __hash__(self):
            return 1

    assert isinstance(wrap(graph, {Key(): 1}, Local("d")), OpaqueVariable)
    assert isinstance(wrap(graph, {(1, "a"): 1, Plain: 2}, Local("e")), DictVariable)


def test_a_tensor_of_which_autograd_does_not_tell_the_history_is_opaque(graph):
    base = torch.ones(2, requires_grad=True) * 1
    with torch.no_grad():
        view = base.view(2)
    base.mul_(2)
    assert isinstance(wrap(graph, view, Local("x")), OpaqueVariable)
    assert isinstance(wrap(graph, base, Local("y")), TensorVariable)
