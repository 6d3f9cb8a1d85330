"""Owns the trackers of external functions, methods, builtins, partials and cells, with guards on the code they run.

Calls are not here (`tracer/calls/call.py`)."""

from __future__ import annotations

import functools
import types
from typing import Any

from minidynamo.bytecode.instructions import decode
from minidynamo.compat import HigherOrderOperator, OpOverload, OpOverloadPacket
from minidynamo.core.directives import COMPILED, own_mark
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.trace_rules import Action, is_trusted_module, rule_for
from minidynamo.tracer.wrap import is_stable, same_object, wrap
from minidynamo.tracer.wrappers.objects import instance_of_subclass, opaque
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
    if _is_guarded_by_identity(value, source):
        graph.guard(source, GuardKind.IDENTITY, value)
    else:
        graph.guard(source, GuardKind.TYPE, types.FunctionType)
        code = Attr(source, "__code__")
        if graph.shapes.object_varies(code, value.__code__):
            graph.on_specialize(code, value.__code__)
        graph.guard(code, GuardKind.IDENTITY, value.__code__)
        graph.guard(Attr(source, "__defaults__"), GuardKind.IDENTITY, None) if value.__defaults__ is None else None
        if _names_globals(value.__code__):
            graph.guard(Attr(source, "__globals__"), GuardKind.IDENTITY, value.__globals__)
    variable = FunctionVariable(value, source=source)
    graph.values.record_object(value, variable)
    return variable


def _is_guarded_by_identity(value: types.FunctionType, source: Source) -> bool:
    """Returns whether a function is guarded by identity, not by its code.

    - Globals and attributes of classes are the same object in every call.
    - Compiled functions get new code with each version.
    - Functions of libraries with different meanings may share code, but for closures that a library creates per call,
      such as torch's hooks for the hooks of a module: all that they read is guarded."""
    if is_stable(source) or (is_trusted_module(value.__module__) and not _is_plain_closure(value)):
        return True
    return own_mark(value, COMPILED) is not None or rule_for(value).action is not Action.INLINE


def _is_plain_closure(value: types.FunctionType) -> bool:
    """Returns whether a function was created in a call of another function, and has no defaults and attributes."""
    has_more = value.__defaults__ or value.__kwdefaults__ or vars(value)
    return value.__closure__ is not None and "<locals>" in value.__qualname__ and not has_more


def _names_globals(code: types.CodeType) -> bool:
    """Returns whether a function, or a function defined in it, reads globals of its module."""
    names_any = any(instruction.opname.endswith(("_GLOBAL", "_NAME")) for instruction in decode(code))
    return names_any or any(_names_globals(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))


@wrapper(types.MethodType)
def _method(graph: OutputGraph, value: types.MethodType, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, types.MethodType)
    function = wrap(graph, value.__func__, Attr(source, "__func__"))
    variable = MethodVariable(function, wrap(graph, value.__self__, Attr(source, "__self__")), source=source)
    graph.values.record_object(value, variable)
    return variable


@wrapper(types.BuiltinFunctionType, types.MethodWrapperType)
def _built_in(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    if not has_receiver(value):
        return same_object(BuiltinVariable)(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(Attr(source, "__name__"), GuardKind.EQUALS, value.__name__)
    variable = BoundBuiltin(wrap(graph, value.__self__, Attr(source, "__self__")), value.__name__, source=source)
    graph.values.record_object(value, variable)
    return variable


def has_receiver(value: Any) -> bool:
    """Returns whether this is a method of an object, not a C function whose `__self__` is its module or type."""
    owner = getattr(value, "__self__", None)
    if owner is None or issubclass(type(owner), types.ModuleType | type):
        return False
    return hasattr(type(owner), value.__name__)


@wrapper(functools.partial)
def _partial(graph: OutputGraph, value: functools.partial[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, functools.partial)
    variable = _parts_of_partial(graph, value, source)
    if variable is None:
        return opaque(graph, value, source)
    graph.values.record_object(value, variable)
    return variable


@subclass_wrapper(functools.partial)
def _partial_subclass(graph: OutputGraph, value: functools.partial[Any], source: Source) -> VariableTracker:
    reads_as_partial = ("__getattribute__", "func", "args", "keywords")
    if any(getattr(type(value), name) is not getattr(functools.partial, name) for name in reads_as_partial):
        return opaque(graph, value, source)
    variable = instance_of_subclass(graph, value, source)
    variable.storage = _parts_of_partial(graph, value, source)
    return variable if variable.storage is not None else opaque(graph, value, source)


def _parts_of_partial(graph: OutputGraph, value: functools.partial[Any], source: Source) -> PartialVariable | None:
    function = wrap(graph, value.func, Attr(source, "func"))
    args = wrap(graph, value.args, Attr(source, "args"))
    keywords = wrap(graph, value.keywords, Attr(source, "keywords"))
    if not isinstance(args, TupleVariable) or not isinstance(keywords, DictVariable):
        return None
    return PartialVariable(function, args, keywords, value, source=source)


@wrapper(types.CellType)
def _cell(graph: OutputGraph, value: types.CellType, source: Source) -> VariableTracker:
    variable = CellVariable(None, value, source=source)
    graph.values.record_object(value, variable)
    return variable
