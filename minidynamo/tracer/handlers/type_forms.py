"""Owns types written inside a function, for `cast` and similar functions: `List[Tensor]`, `Union[A, B]`.

`typing` makes and caches the types, from the real objects inside them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant
from minidynamo.tracer.frames.exceptions import without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable

_SUBSCRIPTS = {
    found
    for cls in vars(typing).values()
    if isinstance(cls, type) and isinstance(found := vars(cls).get("__getitem__"), types.FunctionType)
}


@registry.function(*_SUBSCRIPTS)
def _subscript(tx: Tracer, form: VariableTracker, parameters: VariableTracker, /) -> VariableTracker:
    try:
        alias = _guarded_object(tx, form)[_guarded_object(tx, parameters)]
    except NotConstant:
        tx.break_graph("MD208", f"{an(form.python_type.__name__)} has a parameter that is created while tracing")
    except Exception as error:
        tx.raises(without_message(type(error)))
    return tx.wrap(alias, Constant(alias, repr(alias)))


def _register_question(question: Callable[[Any], Any]) -> None:
    @registry.function(question)
    def answer(tx: Tracer, form: VariableTracker, /) -> VariableTracker:
        try:
            answer = question(_guarded_object(tx, form))
        except NotConstant:
            tx.break_graph("MD208", f"{question.__name__}() is called with a value that is created while tracing")
        return tx.wrap(answer, Constant(answer, repr(answer)))


_register_question(typing.get_args)
_register_question(typing.get_origin)


def _guarded_object(tx: Tracer, part: VariableTracker) -> Any:
    """Returns the object itself and guards its identity; raises NotConstant if the object is unknown."""
    part = part.realize()
    if isinstance(part, TupleVariable | ListVariable):
        items = [_guarded_object(tx, item) for item in part.items.lazy()]
        return items if isinstance(part, ListVariable) else tuple(items)
    if isinstance(part, ObjectVariable | OpaqueVariable):  # from 3.12 on, type variables are written in C
        if part.value is None or part.source is None or part.python_type.__module__ != "typing":
            raise NotConstant(part.python_type.__name__)
        tx.guard(part.source, GuardKind.IDENTITY, part.value)
        return part.value
    return as_constant(part)
