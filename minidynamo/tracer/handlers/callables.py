"""Owns the making of functools objects: partial, wraps and update_wrapper.

Calling them is in `tracer/call.py`.
"""

from __future__ import annotations

import functools

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr
from minidynamo.tracer import registry
from minidynamo.tracer.constants import key_of
from minidynamo.tracer.handlers.values import expect_constant
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import FunctionVariable, NestedFunctionVariable, PartialVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, TupleVariable


@registry.function(functools.partial)
def _partial(
    tx: Tracer, function: VariableTracker, /, *args: VariableTracker, **keywords: VariableTracker
) -> VariableTracker:
    if isinstance(function, PartialVariable):  # functools flattens these too
        return PartialVariable(function.function, [*function.args, *args], {**function.keywords, **keywords})
    return PartialVariable(function, list(args), dict(keywords))


@registry.attributes(FunctionVariable)
def _function_code(tx: Tracer, obj: FunctionVariable, name: str) -> VariableTracker | None:
    if name != "__code__" or obj.source is None:
        return None
    source = Attr(obj.source, name)
    tx.guard(source, GuardKind.IDENTITY, obj.value.__code__)
    return ConstantVariable(obj.value.__code__, source=source)


@registry.attributes(PartialVariable)
def _partial_attribute(tx: Tracer, obj: PartialVariable, name: str) -> VariableTracker | None:
    if name == "func":
        return obj.function
    if name == "args":
        return TupleVariable(list(obj.args))
    if name == "keywords":
        return DictVariable({key_of(ConstantVariable(key)): value for key, value in obj.keywords.items()})
    return None


@registry.function(functools.update_wrapper)
def _update_wrapper(
    tx: Tracer,
    wrapper: VariableTracker,
    wrapped: VariableTracker,
    assigned: VariableTracker | None = None,
    updated: VariableTracker | None = None,
) -> VariableTracker:
    if not isinstance(wrapper, NestedFunctionVariable) or updated is not None:
        tx.break_graph(
            "MD240",
            "`functools.update_wrapper` of a function that was not made here",
            why="Only functions made while tracing can be given another name and documentation.",
            fix="wrap the function outside of the compiled one",
        )
    given = functools.WRAPPER_ASSIGNMENTS if assigned is None else expect_constant(tx, assigned, "`assigned`")
    for name in given:
        value = _attribute(tx, wrapped, name)
        if value is not None:
            wrapper.attributes[name] = value
    if isinstance(wrapped, NestedFunctionVariable):
        wrapper.attributes.update(wrapped.attributes)
    elif isinstance(wrapped, FunctionVariable):
        for name in vars(wrapped.value):
            wrapper.attributes[name] = tx.getattr(wrapped, name)
    wrapper.attributes["__wrapped__"] = wrapped
    return wrapper


def _attribute(tx: Tracer, wrapped: VariableTracker, name: str) -> VariableTracker | None:
    """A field that every function has, or None where the wrapped object has none."""
    if isinstance(wrapped, FunctionVariable) and wrapped.source is not None and hasattr(wrapped.value, name):
        return tx.wrap(getattr(wrapped.value, name), Attr(wrapped.source, name))
    if not isinstance(wrapped, NestedFunctionVariable):
        tx.break_graph("MD240", "`functools.wraps` of what is not a function", why="Its fields are not known.")
    if name in wrapped.attributes:
        return wrapped.attributes[name]
    if name in ("__annotate__", "__type_params__"):
        return None
    return tx.getattr(wrapped, name)


@registry.function(functools.wraps)
def _wraps(
    tx: Tracer,
    wrapped: VariableTracker,
    assigned: VariableTracker | None = None,
    updated: VariableTracker | None = None,
) -> VariableTracker:
    keywords = {"wrapped": wrapped, "assigned": assigned, "updated": updated}
    given = {name: value for name, value in keywords.items() if value is not None}
    return PartialVariable(tx.wrap(functools.update_wrapper, None), [], given)
