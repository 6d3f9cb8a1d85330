"""Owns lazy values, which are external values that the program has only moved, and the unpacking of containers and
iterators into values that may be lazy. A lazy value has no guard, except that its source exists.

Frames move lazy values between stack and locals, into and out of callees, to results and to attributes. Code that reads
the value realizes it first: a tracker is created and guards are installed. Slots, which hold the values, are in
`variables/containers.py`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping

from minidynamo.compat import is_made_at_run_time
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, is_new_each_read
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.side_effects import Advanced
from minidynamo.tracer.runtime.module_iterator import ModuleIterator
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, SequenceVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import LazyVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable

# Classes whose instances are always true.
_TRUE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)


def realize_all(
    args: Iterable[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    """Realizes the arguments of a call."""
    return [arg.realize() for arg in args], {name: value.realize() for name, value in kwargs.items()}


def is_none(tx: Tracer, variable: VariableTracker) -> bool:
    """Returns whether the value is None. For a lazy value, only the answer is guarded."""
    if isinstance(variable, LazyVariable) and variable.value is not None:
        tx.guard(variable.source, GuardKind.NOT_NONE)
        return False
    known = variable.realize()
    return isinstance(known, ConstantVariable) and known.python_type is type(None)


def same_lazy_object(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool | None:
    """Returns whether a lazy value and another external value are one object; None for other pairs.

    Only the answer is guarded.
    """
    left, right = left.realized(), right.realized()
    if not isinstance(left, LazyVariable):
        left, right = right, left
    if not isinstance(left, LazyVariable) or left.source is None or right.source is None:
        return None
    if is_new_each_read(left.source) or is_new_each_read(right.source):
        return None
    if left.source == right.source:
        return True
    if isinstance(right, LazyVariable):
        same = left.value is right.value
    elif isinstance(right, ObjectVariable | TensorVariable) and not isinstance(right.source, Constant):
        same = tx.graph.tracker_of(left.value) is right
    else:
        return None
    if same:
        tx.guard(left.source, GuardKind.SAME_OBJECT, right.source)
    else:
        tx.guard(left.source, GuardKind.DISTINCT_OBJECTS, (right.source,))
    return same


def class_of(tx: Tracer, variable: VariableTracker) -> type:
    """Returns `type(variable)`. For a lazy value, only the class is guarded.

    A class that the program defines gets more guards, on the contents of the class.
    """
    variable = variable.realized()
    cls = variable.python_type
    if not isinstance(variable, LazyVariable) or is_made_at_run_time(cls):
        return variable.realize().python_type
    tx.guard(variable.source, GuardKind.TYPE, cls)
    return cls


def truth(tx: Tracer, variable: VariableTracker) -> bool:
    """Returns `bool(variable)`; for a lazy function, class or module, only its class is guarded."""
    if isinstance(variable, LazyVariable) and type(variable.value) in _TRUE:
        tx.guard(variable.source, GuardKind.TYPE, type(variable.value))
        return True
    return tx.truth(variable.realize())


def exact_copy(storage: VariableTracker) -> VariableTracker:
    """Returns the result of an operation that changes nothing of an instance of a subclass: a new object of the builtin
    class.

    For mutable values, the result is `storage` itself.
    """
    if isinstance(storage, ConstantVariable):
        return ConstantVariable(storage.value)
    if isinstance(storage, TupleVariable):
        return TupleVariable(storage.items.lazy(), storage.cls)
    if isinstance(storage, SetVariable) and storage.cls is frozenset:
        return SetVariable({**storage.items}, frozenset, storage.real)
    return storage


def unpack_mapping(tx: Tracer, obj: VariableTracker) -> Mapping[DictKey, VariableTracker]:
    """Returns the entries of a mapping, `{**obj}`; values that were never read are lazy."""
    mapping = obj
    if type(obj) is not DictVariable or obj.cls is not dict:
        is_mapping = tx.call(hasattr, [obj, ConstantVariable("keys")])
        if isinstance(is_mapping, ConstantVariable) and not is_mapping.value:  # `dict` also accepts pairs
            tx.raises(TypeError(f"'{obj.realize().python_type.__name__}' object is not a mapping"))
        mapping = tx.call(dict, [obj])
    assert isinstance(mapping, DictVariable)
    return mapping.items.lazy()


def unpack_lazy(tx: Tracer, obj: VariableTracker) -> list[VariableTracker]:
    """Returns `list(obj)`; items that were never read are lazy."""
    if isinstance(obj, SequenceVariable):
        return obj.items.lazy()
    iterator = tx.call(iter, [obj])
    items = []
    while (item := next_lazy(tx, iterator)) is not None:
        items.append(item)
    return items


def next_lazy(tx: Tracer, iterator: VariableTracker) -> VariableTracker | None:
    """Returns the next item of an iterator, maybe lazy; None when the iterator is exhausted."""
    advance = registry.ADVANCE.get(type(iterator))
    hidden = isinstance(iterator, ObjectVariable) and iterator.source is not None
    if advance is None or hidden:
        is_loop = iterator.python_type is ModuleIterator
        tx.break_graph(
            "MD217",
            "a loop over modules in which the graph has broken"
            if is_loop
            else f"iteration over an external {iterator.python_type.__name__}",
            why="An iterator hides its position; each step runs eagerly and the loop's body is captured once.",
            fix="Remove the other graph breaks of the loop." if is_loop else "Pass a list instead: list(iterator)",
        )
    tx.side_effects.on_effect(Advanced(iterator))
    return advance(tx, iterator)
