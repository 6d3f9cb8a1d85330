"""Owns how objects are rebuilt: created by a built-in `__new__`, and filled without running code of their class.

The classes' own `__new__`, `__init__` and `__setattr__` are not called here: they were traced, and their effects are in
the attributes. Also here: torch's context managers, with the state of an open one."""

from __future__ import annotations

import collections
import inspect
import threading
import types
import weakref

import numpy as np
import torch

from minidynamo.tracer.frames.exceptions import native_base
from minidynamo.tracer.reconstruct.builders import builds, fills, hint_of, keeps
from minidynamo.tracer.reconstruct.callables import parts_of_partial
from minidynamo.tracer.reconstruct.containers import refill
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, cannot_rebuild, tuple_literal
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import ContextExitVariable, ContextVariable, PartialVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import (
    ClassVariable,
    ExceptionVariable,
    ModuleVariable,
    NamespaceVariable,
    ObjectVariable,
    WeakReferenceVariable,
)
from minidynamo.variables.tensors import ArrayVariable, GradFnVariable, HookVariable, StorageVariable


def _bare_object(rebuild: Rebuilder, variable: ObjectVariable) -> str:
    """Creates an instance without the class's own `__new__` and `__init__`, which were traced."""
    if variable.value is not None:
        raise cannot_rebuild(variable)
    builtin = next(b for b in variable.cls.__mro__ if isinstance(b.__dict__.get("__new__"), types.BuiltinFunctionType))
    contents = ""
    if isinstance(variable.storage, TupleVariable):
        contents = f", {tuple_literal([rebuild.value(item) for item in variable.storage.items.lazy()])}"
    elif isinstance(variable.storage, ConstantVariable | SetVariable) and variable.storage.python_type is not set:
        contents = f", {rebuild.value(variable.storage)}"
    elif isinstance(variable.storage, PartialVariable):
        contents = f", {parts_of_partial(rebuild, variable.storage)}"
    return f"{rebuild.constant(builtin)}.__new__({rebuild.constant(variable.cls)}{contents})"


def _bare_exception(rebuild: Rebuilder, variable: ExceptionVariable) -> str:
    """Creates an exception that was not raised: a raised exception has a traceback, which only Python can create."""
    if variable.is_raised or variable.args is None:
        raise cannot_rebuild(variable)
    native = rebuild.constant(native_base(variable.cls))
    args = [rebuild.value(item) for item in variable.args.items.lazy()]
    expression = f"{native}.__new__({', '.join([rebuild.constant(variable.cls), *args])})"
    if not issubclass(variable.cls, StopIteration):
        return expression
    name = rebuild.assign("stop", expression)
    rebuild.lines.append(f"{native}.__init__({', '.join([name, *args])})")
    return name


@builds(ObjectVariable, ModuleVariable)
def _object(rebuild: Rebuilder, variable: ObjectVariable) -> str:
    name = rebuild.assign(hint_of(variable), _bare_object(rebuild, variable))
    _fill_object(rebuild, variable, name)
    return name


@fills(ObjectVariable, ModuleVariable, empty=_bare_object)
@fills(ExceptionVariable, empty=_bare_exception)
def _fill_object(rebuild: Rebuilder, variable: ObjectVariable, name: str) -> None:
    """Sets contents and attributes, without running code of the class."""
    storage = variable.storage
    if isinstance(storage, DictVariable) and storage.default_factory is not None:
        factory = rebuild.value(storage.default_factory)
        rebuild.lines.append(f"{rebuild.constant(collections.defaultdict)}.__init__({name}, {factory})")
    if isinstance(storage, (ListVariable, DictVariable)) or (isinstance(storage, SetVariable) and storage.cls is set):
        rebuild.lines += refill(rebuild, storage, name, is_empty=True)
    for attribute, value in rebuild.side_effects.written_attributes(variable).items():
        if isinstance(value, VariableTracker):
            rebuild.lines.append(set_attribute(rebuild, variable, name, attribute, rebuild.value(value)))


@keeps(ExceptionVariable)
def _parts_of_exception(variable: ExceptionVariable) -> dict[str, VariableTracker]:
    return {} if variable.args is None else {"args": variable.args}


@builds(ExceptionVariable)
def _exception(rebuild: Rebuilder, variable: ExceptionVariable) -> str:
    expression = _bare_exception(rebuild, variable)
    if not rebuild.side_effects.written_attributes(variable):
        return expression
    name = rebuild.assign("error", expression)
    _fill_object(rebuild, variable, name)
    return name


def set_attribute(rebuild: Rebuilder, obj: VariableTracker, name: str, attribute: str, value: str) -> str:
    """Returns the statement that stores an attribute of the object called `name` without running code of its class."""
    if isinstance(obj, ClassVariable):
        return f"{rebuild.constant(type)}.__setattr__({name}, {attribute!r}, {value})"
    if hides_attribute(obj, attribute):
        return f"{dictionary_of(rebuild, obj, name)}[{attribute!r}] = {value}"
    return f"{rebuild.constant(object)}.__setattr__({name}, {attribute!r}, {value})"


def dictionary_of(rebuild: Rebuilder, obj: VariableTracker, name: str) -> str:
    """Returns text for the dictionary of the object called `name`, without a call of a user's `__getattribute__`."""
    if not isinstance(obj.python_type.__getattribute__, types.FunctionType):
        return f"{name}.__dict__"
    return f"{rebuild.constant(object)}.__getattribute__({name}, '__dict__')"


def hides_attribute(obj: VariableTracker, name: str) -> bool:
    """Returns whether the attribute must be written to the dictionary of the object.

    A descriptor of the class takes precedence, or each thread has a dictionary of its own."""
    if issubclass(obj.python_type, threading.local):
        return True
    found = next((vars(base)[name] for base in obj.python_type.__mro__ if name in vars(base)), None)
    if not isinstance(obj, ObjectVariable) or inspect.ismemberdescriptor(found) or inspect.isgetsetdescriptor(found):
        return False
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


@builds(NamespaceVariable)
def _namespace(rebuild: Rebuilder, variable: NamespaceVariable) -> str:
    if isinstance(variable.owner, DictVariable):
        return f"{rebuild.constant(types.MappingProxyType)}({rebuild.value(variable.owner)})"
    return dictionary_of(rebuild, variable.owner, rebuild.value(variable.owner))


@builds(ArrayVariable)
def _array(rebuild: Rebuilder, variable: ArrayVariable) -> str:
    if variable.shared is not None:
        return f"{rebuild.value(variable.shared)}.detach().numpy()"
    return f"{rebuild.constant(np.array)}({rebuild.constant(variable.value)})"


@builds(StorageVariable)
def _storage(rebuild: Rebuilder, variable: StorageVariable) -> str:
    return f"{rebuild.value(variable.of)}.untyped_storage()"


@builds(GradFnVariable, hint="grad_fn")
def _grad_fn(rebuild: Rebuilder, variable: GradFnVariable) -> str:
    return f"{rebuild.value(variable.of)}.grad_fn"


@builds(HookVariable, hint="handle")
def _handle(rebuild: Rebuilder, variable: HookVariable) -> str:
    return f"{rebuild.value(variable.state)}.{variable.name}"


@builds(WeakReferenceVariable)
def _weak_reference(rebuild: Rebuilder, variable: WeakReferenceVariable) -> str:
    assert variable.referent is not None
    return f"{rebuild.constant(weakref.ref)}({rebuild.value(variable.referent)})"


_GRAD_MODES = (torch.no_grad, torch.enable_grad, torch.autograd.set_grad_enabled)


@builds(ContextVariable, hint="context")
def _context(rebuild: Rebuilder, variable: ContextVariable) -> str:
    arguments = ", ".join(rebuild.literal(argument) for argument in variable.args)
    factory = rebuild.constant(variable.factory)
    if variable.saved is None or variable.factory not in _GRAD_MODES:
        return f"{factory}({arguments})"
    # set_grad_enabled() would switch the mode at once, and record the present mode.
    name = rebuild.assign("context", f"{factory}.__new__({factory})")
    rebuild.lines.append(f"{name}.prev = {variable.saved}")
    if variable.args:
        rebuild.lines.append(f"{name}.mode = {variable.args[0]}")
    return name


@builds(ContextExitVariable)
def _context_exit(rebuild: Rebuilder, variable: ContextExitVariable) -> str:
    return f"{rebuild.value(variable.context)}.__exit__"
