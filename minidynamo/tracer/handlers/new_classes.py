"""Owns classes that the program creates in each call: `class` statements and `collections.namedtuple`.

The class is created during capture, too, and serves the trace. Nothing outside may hold it: if the program keeps the
class or an instance, the residual program creates a class of its own, by the same call. If the program keeps a method
of the class, or writes to the class, the graph ends before the class is created.
"""

from __future__ import annotations

import builtins
import collections
import types
from typing import Any

from minidynamo.bytecode.instructions import decode
from minidynamo.errors import Diagnostic
from minidynamo.guards.source import Constant
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.opcodes.loads_stores import read_global
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.tracer.records.side_effects import NewClass
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import NestedFunctionVariable
from minidynamo.variables.objects import ClassVariable

_WHY = "A class is a new object at each call."
_FIX = "move it to the module"

# Instructions of a class body that run no code of the user and read nothing but names.
_PLAIN = frozenset(
    (
        *("RESUME", "NOP", "CACHE", "LOAD_NAME", "STORE_NAME", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"),
        *("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE", "MAKE_CELL", "LOAD_CLOSURE", "LOAD_FAST", "COPY", "BUILD_TUPLE"),
        *("BUILD_CONST_KEY_MAP", "BUILD_MAP", "SETUP_ANNOTATIONS", "STORE_SUBSCR"),
        *("PUSH_NULL", "PRECALL", "CALL", "POP_TOP"),
    )
)
# Decorators of methods: the only callables that a class body may call.
_DECORATORS = (property, staticmethod, classmethod)
_OF_CLASS_BODIES = ("__name__", "__annotations__")


@registry.function(builtins.__build_class__)
def _class_statement(
    tx: Tracer, body: VariableTracker, name: VariableTracker, /, *bases: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    parents = [base.value if isinstance(base, ClassVariable) else None for base in bases]
    if (
        not isinstance(body, NestedFunctionVariable)
        or kwargs
        or not all(_is_built_in(parent) for parent in parents)
        or not _is_plain(tx, body.code)
    ):
        tx.break_graph("MD233", "a `class` statement", why=_WHY, fix=_FIX)
    function = types.FunctionType(body.code, body.namespace, body.code.co_name)
    cls: Any = builtins.__build_class__(function, as_constant(name), *parents)
    return _record(tx, cls, builtins.__build_class__, (body, name, *bases), {})


def _is_built_in(cls: type | None) -> bool:
    return cls is not None and type(cls) is type and cls.__module__ == "builtins"


def _is_plain(tx: Tracer, code: types.CodeType) -> bool:
    """Returns whether a class body defines only functions and constants, and guards the names that it reads."""
    instructions = decode(code)
    if code.co_freevars or not _PLAIN.issuperset(instruction.opname for instruction in instructions):
        return False
    stored = {str(i.argval) for i in instructions if i.opname == "STORE_NAME"}
    read = {str(i.argval) for i in instructions if i.opname == "LOAD_NAME"}.difference(_OF_CLASS_BODIES)
    if read & stored:
        return False
    found = [_class_at(tx.frames[-1], name) for name in read]
    calls = any(instruction.opname == "CALL" for instruction in instructions)
    return None not in found and (not calls or all(cls in _DECORATORS for cls in found))


def _class_at(frame: Frame, name: str) -> type | None:
    """Returns the class that a global name or a builtin refers to; None for another value."""
    known = frame.namespace.get(name, vars(builtins).get(name))
    if not isinstance(known, type):
        return None
    found = read_global(frame, name).realize()
    return known if isinstance(found, ClassVariable) and found.value is known else None


@registry.function(collections.namedtuple)
def _namedtuple(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if "module" not in kwargs:
        kwargs["module"] = ConstantVariable(tx.frames[-1].namespace.get("__name__", "__main__"))
    create: Any = collections.namedtuple
    try:
        values = [as_constant(arg) for arg in args]
        named = {key: as_constant(value) for key, value in kwargs.items()}
    except NotConstant:
        tx.break_graph("MD233", "`namedtuple` with values that are only known when the program runs", why=_WHY)
    try:
        cls = create(*values, **named)
    except (TypeError, ValueError) as error:
        tx.raises(error, exact=True)
    return _record(tx, cls, create, args, kwargs)


def _record(
    tx: Tracer, cls: type, make: Any, args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    what = f"graph break: a method of the class {cls.__name__} is kept, or the class is changed"
    tx.side_effects.new_class(
        NewClass(cls, make, args, kwargs), Diagnostic("MD233", what, _WHY, _FIX, where=tx.frames[-1].location)
    )
    tx.graph.skip_guards(Constant(cls, cls.__name__))
    return ClassVariable(cls)
