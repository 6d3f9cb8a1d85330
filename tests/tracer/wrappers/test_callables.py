import functools

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    FunctionVariable,
    MethodVariable,
    PartialVariable,
)
from tests.tracer.wrapping import assert_wrapped, empty_graph


class Plain:
    def method(self):
        return self


def test_callables_are_taken_apart():
    assert_wrapped(Plain().method, MethodVariable, {GuardKind.TYPE})
    assert_wrapped([].append, BoundBuiltin, {GuardKind.TYPE})
    assert_wrapped(functools.partial(max, 1), PartialVariable, {GuardKind.TYPE})


def test_builtins_are_known_by_identity():
    assert_wrapped(len, BuiltinVariable, {GuardKind.IDENTITY})
    assert_wrapped(list.append, BuiltinVariable, {GuardKind.IDENTITY})


def test_functions_by_identity_where_they_stay_and_by_code_where_they_come_and_go():
    graph = empty_graph()
    function = wrap(graph, lambda x, y=[]: x, Local("f"))
    assert isinstance(function, FunctionVariable)
    assert {guard.source.display() for guard in graph.guards} >= {"f.__code__"}
    assert wrap(graph, len, None).value is len and wrap(graph, Plain, None).value is Plain
