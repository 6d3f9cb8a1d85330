"""Owns how functions, methods, builtins, partials and cells from outside are tracked, with guards on what they run.

What a call of them means is up to `call.py`.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from minidynamo.compat import HigherOrderOperator, OpOverload, OpOverloadPacket
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Item, Source
from minidynamo.steering import COMPILED, own_mark
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import same_object, wrap
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    PartialVariable,
)
from minidynamo.variables.containers import DictVariable, TupleVariable

wrapper(
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    OpOverload,
    OpOverloadPacket,
)(same_object(BuiltinVariable))
subclass_wrapper(HigherOrderOperator)(same_object(BuiltinVariable))


@wrapper(types.FunctionType)
def _function(graph: OutputGraph, value: types.FunctionType, source: Source) -> VariableTracker:
    if _by_identity(source) or own_mark(value, COMPILED):  # a compiled one gets new code with each version
        graph.guard(source, GuardKind.IDENTITY, value)
    else:
        graph.guard(source, GuardKind.TYPE, types.FunctionType)
        code = Attr(source, "__code__")
        if graph.shapes.object_varies(code, value.__code__):
            graph.on_pin(code, value.__code__)
        graph.guard(code, GuardKind.IDENTITY, value.__code__)
        graph.guard(Attr(source, "__defaults__"), GuardKind.IDENTITY, None) if value.__defaults__ is None else None
    variable = FunctionVariable(value, source=source)
    graph.values.remember(value, variable)
    return variable


def _by_identity(source: Source) -> bool:
    """Whether a function found here is the same object at every call: globals and attributes, not arguments."""
    if isinstance(source, Item):
        namespace = source.of
        return (isinstance(namespace, Constant) and namespace.hidden) or isinstance(namespace, Attr)
    return isinstance(source, Attr | InstanceAttr | Constant)


@wrapper(types.MethodType)
def _method(graph: OutputGraph, value: types.MethodType, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, types.MethodType)
    function = wrap(graph, value.__func__, Attr(source, "__func__"))
    variable = MethodVariable(function, wrap(graph, value.__self__, Attr(source, "__self__")), source=source)
    graph.values.remember(value, variable)
    return variable


@wrapper(types.BuiltinFunctionType, types.MethodWrapperType)
def _built_in(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    if not has_receiver(value):
        return same_object(BuiltinVariable)(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(Attr(source, "__name__"), GuardKind.EQUALS, value.__name__)
    variable = BoundBuiltin(wrap(graph, value.__self__, Attr(source, "__self__")), value.__name__, source=source)
    graph.values.remember(value, variable)
    return variable


def has_receiver(value: Any) -> bool:
    """Whether it is a method of an object, not a function in C that keeps its module or type where methods do that."""
    owner = getattr(value, "__self__", None)
    if owner is None or issubclass(type(owner), types.ModuleType | type):
        return False
    return hasattr(type(owner), value.__name__)


@wrapper(functools.partial)
def _partial(graph: OutputGraph, value: functools.partial[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, functools.partial)
    function = wrap(graph, value.func, Attr(source, "func"))
    args = wrap(graph, value.args, Attr(source, "args"))
    keywords = wrap(graph, value.keywords, Attr(source, "keywords"))
    if not isinstance(args, TupleVariable) or not isinstance(keywords, DictVariable):
        return opaque(graph, value, source)
    variable = PartialVariable(function, args, keywords, value, source=source)
    graph.values.remember(value, variable)
    return variable


@wrapper(types.CellType)
def _cell(graph: OutputGraph, value: types.CellType, source: Source) -> VariableTracker:
    variable = CellVariable(None, value, source=source)
    graph.values.remember(value, variable)
    return variable
