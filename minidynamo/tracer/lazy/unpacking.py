"""Owns the unpacking of containers and iterators into values that may be lazy.

Slots, which hold the values, are in `variables/containers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.copies import fresh_copy
from minidynamo.tracer.records.side_effects import Advanced
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, SequenceVariable, SetStep, SetVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable


def exact_copy(storage: VariableTracker) -> VariableTracker:
    """Returns the result of an operation that changes nothing of an instance of a subclass: a new object of the builtin
    class.

    For mutable values, the result is `storage` itself.
    """
    if isinstance(storage, ConstantVariable):
        return ConstantVariable(fresh_copy(storage.value))
    if isinstance(storage, TupleVariable):
        return TupleVariable(storage.items.lazy(), storage.cls)
    if isinstance(storage, SetVariable) and storage.cls is frozenset:
        return SetVariable({**storage.items}, frozenset, creation=SetStep("union", (storage,)))
    return storage


def unpack_mapping(tx: Tracer, obj: VariableTracker) -> Mapping[DictKey, VariableTracker]:
    """Returns the entries of a mapping, `{**obj}`; values that were never read are lazy."""
    made = obj
    if type(obj) is not DictVariable or obj.cls is not dict:
        is_mapping = tx.call(hasattr, [obj, ConstantVariable("keys")])
        if isinstance(is_mapping, ConstantVariable) and not is_mapping.value:  # `dict` also accepts pairs
            tx.raises(TypeError(f"'{obj.realize().python_type.__name__}' object is not a mapping"))
        made = tx.call(dict, [obj])
    assert isinstance(made, DictVariable)
    return made.items.lazy()


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
        tx.break_graph(
            "MD217",
            f"iteration over an external {iterator.python_type.__name__}",
            why="An iterator hides its position; each step runs eagerly and the loop's body is captured once.",
        )
    tx.side_effects.on_effect(Advanced(iterator))
    return advance(tx, iterator)
