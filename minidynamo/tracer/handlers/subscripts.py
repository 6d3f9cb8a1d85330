"""Owns subscripts: `obj[key]`, `obj[key] = value`, `del obj[key]`, and `list[int]`, which makes a generic alias.

Keys of tensors are in `tracer/calls/tensor_indexing.py`; containers have `__getitem__` handlers of their own.
"""

from __future__ import annotations

import collections
import operator
import types
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import class_has, lookup_on_class
from minidynamo.tracer.calls.operators import fold
from minidynamo.tracer.calls.tensor_indexing import (
    WHOLE,
    index_by_tensors,
    refuse_unknown_lengths,
    scalar_bool_as_mask,
    select_numbers,
)
from minidynamo.tracer.frames.exceptions import without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy import partial_reads
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, is_constant_value, slice_of
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, SliceVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable
from minidynamo.variables.tensors import TensorVariable


def as_index(tx: Tracer, key: VariableTracker) -> VariableTracker:
    """Converts a subscript for sequences and tensors: replaces an object with `__index__` by its number."""
    if isinstance(key, ObjectVariable) and key.storage is None and class_has(key.python_type, "__index__"):
        number = tx.call_method(key, "__index__")
        return number if number.python_type is int else key
    if isinstance(key, SliceVariable):
        step, start, stop = (as_index(tx, part) for part in (key.step, key.start, key.stop))
        return slice_of(start, stop, step)
    return key


def _subscript_of(tx: Tracer, obj: VariableTracker, key: VariableTracker) -> VariableTracker:
    if not isinstance(obj, TensorVariable | ConstantVariable | SequenceVariable):
        return key
    if isinstance(obj, TensorVariable) and isinstance(key, TupleVariable) and key.python_type is tuple:
        indices = [as_index(tx, part) for part in key.items]
        return key if all(map(operator.is_, indices, key.items)) else TupleVariable(indices)
    return as_index(tx, key)


@registry.function(operator.getitem)
def _getitem(tx: Tracer, obj: VariableTracker, key: VariableTracker, /) -> VariableTracker:
    key = _subscript_of(tx, obj, key)
    if isinstance(obj, TensorVariable):
        if tx.function_modes and (indexed := index_by_tensors(tx, obj, key)) is not None:
            return indexed
        part, remaining_key = select_numbers(tx, obj, key)
        return part if remaining_key is WHOLE else tx.emit(operator.getitem, [part, remaining_key])
    if isinstance(obj, ConstantVariable):
        result = partial_reads.answer(tx, obj, "__getitem__", [key]) or fold(tx, operator.getitem, obj, key)
        if result is not None:
            return result
    if isinstance(obj, ClassVariable) and not class_has(obj.python_type, "__getitem__"):
        return _generic_alias(tx, obj.value, key)
    return _subscript(tx, obj, "__getitem__", key)


def _generic_alias(tx: Tracer, cls: type, key: VariableTracker) -> VariableTracker:
    """Makes `list[int]`, as annotations do. Most aliases are new objects at each call; `typing` caches its own."""
    own, owner = lookup_on_class(cls, "__class_getitem__")
    if (
        owner is not None
        and isinstance(own, classmethod)
        and not is_trusted_module(getattr(own.__func__, "__module__", None))
    ):
        return tx.call(tx.getattr(tx.wrap(cls, None), "__class_getitem__"), [key], lazy=True)
    try:
        argument = _type_argument(tx, key)
        alias = cls[argument]  # type: ignore[index]
        if is_constant_value(alias):
            return ConstantVariable(alias)
        if cls[argument] is alias:  # type: ignore[index]
            return tx.wrap(alias, Constant(alias, "alias"))
    except (NotConstant, TypeError):
        pass
    what = f"making the generic alias {cls.__name__}[...]"
    tx.break_graph(
        "MD241",
        what,
        why="Types are not created while tracing.",
        fix="Make it outside of the compiled function, and pass it in.",
    )


# Classes whose instances cannot keep the alias that made them.
_WITHOUT_ATTRIBUTES = (list, dict, set, frozenset, tuple, collections.deque, collections.defaultdict)


@registry.method(types.GenericAlias, "__call__")
def _call_alias(
    tx: Tracer, alias: ConstantVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """Calls `list[int]()` and the like: the class, without its parameters."""
    origin = alias.value.__origin__
    if origin not in _WITHOUT_ATTRIBUTES:
        tx.break_graph("MD206", "a GenericAlias is called", why="The instance keeps the alias.")
    return tx.call(origin, args, kwargs)


def _type_argument(tx: Tracer, key: VariableTracker) -> Any:
    if isinstance(key, TupleVariable | ListVariable):
        return key.python_type(_type_argument(tx, item) for item in key.items)
    if isinstance(key, OpaqueVariable | ObjectVariable) and key.value is not None:
        tx.guard(key.source, GuardKind.IDENTITY, key.value)
        return key.value
    return as_constant(key)


@registry.function(operator.setitem)
@registry.accepts_lazy("value")
def _setitem(tx: Tracer, obj: VariableTracker, key: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    key = _subscript_of(tx, obj, key)
    if isinstance(obj, TensorVariable):
        value = value.realize()
        refuse_unknown_lengths(tx, key)
        return tx.emit(operator.setitem, [*scalar_bool_as_mask(tx, *select_numbers(tx, obj, key), value), value])
    _subscript(tx, obj, "__setitem__", key, value)
    return ConstantVariable(None)


@registry.function(operator.delitem)
def _delitem(tx: Tracer, obj: VariableTracker, key: VariableTracker, /) -> VariableTracker:
    _subscript(tx, obj, "__delitem__", _subscript_of(tx, obj, key))
    return ConstantVariable(None)


def _subscript(tx: Tracer, obj: VariableTracker, name: str, *args: VariableTracker) -> VariableTracker:
    if not class_has(obj.python_type, name):
        tx.raises(without_message(TypeError))
    return tx.call_method(obj, name, args, lazy=True)
