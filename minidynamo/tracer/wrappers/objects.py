"""Owns the trackers of external objects, tensors, nn.Modules, classes, Python modules and weak references.

Contents of containers are not here, but in other files of this folder; attribute reads are in `tracer/attributes/`."""

from __future__ import annotations

import contextvars
import types
import weakref
from typing import Any

import torch

from minidynamo.compat import is_made_at_run_time, without_torch_function
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import PLAIN_VALUES, Attr, PlainValue, Source
from minidynamo.tracer.attributes import instance_dict, is_plain_namespace
from minidynamo.tracer.frames.exceptions import can_make
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.records.tensor_classes import (
    has_properties_of_torch,
    is_tensor_class,
    overrides_functions,
    special_kind,
)
from minidynamo.tracer.trace_rules import is_plain_class, is_trusted_class, is_trusted_module
from minidynamo.tracer.wrap import guard_names, same_object, wrap
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import (
    ClassVariable,
    ContextVarVariable,
    ModuleVariable,
    ObjectVariable,
    OpaqueVariable,
    PythonModuleVariable,
    WeakReferenceVariable,
)

wrapper(contextvars.ContextVar)(same_object(ContextVarVariable))


@wrapper(types.ModuleType)
@subclass_wrapper(types.ModuleType)
def _python_module(graph: OutputGraph, value: types.ModuleType, source: Source) -> VariableTracker:
    namespace = types.ModuleType.__getattribute__(value, "__dict__")
    if not is_trusted_module(namespace.get("__name__")):
        graph.guard(source, GuardKind.TYPE, type(value))  # a program can replace it
    return same_object(PythonModuleVariable)(graph, value, source)


@subclass_wrapper(object)
def _object(graph: OutputGraph, value: object, source: Source) -> VariableTracker:
    return _instance(graph, value, source, is_plain_class(type(value)))


@subclass_wrapper(BaseException)
def _exception(graph: OutputGraph, value: BaseException, source: Source) -> VariableTracker:
    """Wraps an exception as a plain object if it keeps only its arguments and attributes."""
    return _instance(graph, value, source, can_make(type(value)))


def _instance(graph: OutputGraph, value: object, source: Source, is_plain: bool) -> VariableTracker:
    cls = type(value)
    if not is_plain:
        return opaque(graph, value, source)
    variable = ObjectVariable(value, cls, source=source)
    namespace = instance_dict(value)
    if namespace is not None:
        holder = graph.values.claim_namespace(namespace, variable)
        if holder is not variable and not _shares(graph, namespace, variable, holder):
            return opaque(graph, value, source)
    graph.guard(source, GuardKind.TYPE, cls)
    guard_names(graph, cls)
    graph.values.record_object(value, variable)
    return variable


def _shares(graph: OutputGraph, namespace: Any, variable: ObjectVariable, holder: VariableTracker) -> bool:
    """Lets an object share its dictionary with `holder`, another object or the dictionary itself. Returns False if the
    dictionary is not a plain one."""
    assert variable.source is not None
    own = Attr(variable.source, "__dict__")
    same = Attr(holder.source, "__dict__") if isinstance(holder, ObjectVariable) and holder.source else holder.source
    is_plain = isinstance(holder, ObjectVariable | DictVariable) and is_plain_namespace(namespace)
    if same is None or not is_plain:
        return False
    graph.guard(variable.source, GuardKind.TYPE, variable.cls)
    graph.guard(own, GuardKind.SAME_OBJECT, same)
    variable.shares = holder
    return True


@subclass_wrapper(torch.nn.Module)
def _module(graph: OutputGraph, value: torch.nn.Module, source: Source) -> VariableTracker:
    variable = ModuleVariable(value, type(value), source=source)
    if graph.values.claim_namespace(instance_dict(value), variable) is not variable:
        return opaque(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    guard_names(graph, type(value))
    graph.values.record_object(value, variable)
    return variable


def opaque(graph: OutputGraph, value: object, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    variable = OpaqueVariable(value, source=source)
    graph.values.record_object(value, variable)
    return variable


def instance_of_subclass(graph: OutputGraph, value: object, source: Source) -> ObjectVariable:
    graph.guard(source, GuardKind.TYPE, type(value))
    guard_names(graph, type(value))
    variable = ObjectVariable(value, type(value), source=source)
    graph.values.record_object(value, variable)
    return variable


@subclass_wrapper(*PLAIN_VALUES)
def _value_subclass(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    base = next(base for base in type(value).__mro__ if base in PLAIN_VALUES)
    if not is_made_at_run_time(type(value)):  # numpy's scalars
        return opaque(graph, value, source)
    variable = instance_of_subclass(graph, value, source)
    variable.storage = wrap(graph, PLAIN_VALUES[base](value), PlainValue(source, base))
    return variable


@subclass_wrapper(type)
def _class(graph: OutputGraph, value: type, source: Source) -> VariableTracker:
    guard_names(graph, value)
    if not is_trusted_class(type(value)):
        graph.guard(source, GuardKind.TYPE, type(value))
        guard_names(graph, type(value))
    return same_object(ClassVariable)(graph, value, source)


@wrapper(weakref.ref)
def _weak_reference(graph: OutputGraph, value: weakref.ref[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, weakref.ref)
    variable = WeakReferenceVariable(value, source=source)
    graph.values.record_object(value, variable)
    return variable


@wrapper(torch.Tensor, torch.nn.Parameter)
def _tensor(graph: OutputGraph, value: torch.Tensor, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    if not is_plain_tensor(value):
        return opaque(graph, value, source)
    return graph.inputs.tensor(value, source)


@subclass_wrapper(torch.Tensor)
def _tensor_of_a_library(graph: OutputGraph, value: torch.Tensor, source: Source) -> VariableTracker:
    cls = type(value)
    with without_torch_function():  # code of the class, which would observe the reads
        overrides = overrides_functions(cls)
        graph.has_tensor_classes = True
        is_taken = is_tensor_class(cls) and is_plain_tensor(value) and has_properties_of_torch(value)
        if not is_taken or (overrides and value.requires_grad):
            return opaque(graph, value, source)
        graph.guard(source, GuardKind.TYPE, cls)
        guard_names(graph, cls)
        return graph.inputs.tensor(value, source)


def is_plain_tensor(value: torch.Tensor) -> bool:
    """Returns whether dtype, device, shape, strides and requires_grad describe the tensor, except its data."""
    return not special_kind(value)
