"""Owns the iteration order of tracked sets.

Equal sets may iterate in different orders, so the order is known during tracing only if the tracker has a real set: an
external set, or a set that changes as the program's set does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, source_key
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, SequenceVariable, SetVariable, TupleVariable

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _plain_value(item: VariableTracker) -> Any:
    """Returns the value of a constant whose hash is the same in every call; raises NotConstant for any other item."""
    if isinstance(item, TupleVariable) and item.cls is tuple:
        return tuple(map(_plain_value, item.items))
    if isinstance(item, ConstantVariable) and type(item.value) in _PLAIN and item.value == item.value:
        return as_constant(item)
    raise NotConstant(type(item).__name__)


def _real_operand(operand: VariableTracker) -> Any:
    """Returns a real value that acts on sets as an operand does; raises NotConstant if no such value is known."""
    if isinstance(operand, SetVariable):
        # Of an external set only the items are guarded.
        if operand.real is None or not (operand.source is None or isinstance(operand.source, Constant)):
            raise NotConstant("set of unknown order")
        return operand.real
    if isinstance(operand, DictVariable):
        return dict.fromkeys(_plain_value(key.variable) for key in operand.items)
    if isinstance(operand, SequenceVariable):
        return [*map(_plain_value, operand.items)]
    raise NotConstant(type(operand).__name__)


def new_set(keys: Iterable[DictKey]) -> SetVariable:
    """Returns the set that a program makes by adding these keys in order."""
    variable = SetVariable({}, real=set())
    for key in keys:
        add(variable, key)
    return variable


def set_of_call(keys: Iterable[DictKey], cls: type, method: str, operands: Sequence[VariableTracker]) -> SetVariable:
    """Returns a set of the given items, the result of `cls.method(*operands)`, or of `cls(*operands)` for "new"."""
    make = cls if method == "new" else getattr(cls, method)
    try:
        real = make(*map(_real_operand, operands))
    except NotConstant:
        real = None
    return SetVariable(dict.fromkeys(keys), cls, real)


def add(variable: SetVariable, key: DictKey) -> bool:
    """Adds an item as the program does; returns whether it is new, as far as known."""
    unknown = isinstance(variable.items, LazyDict) and not variable.items.is_read
    if not unknown and key in variable.items:
        return False
    variable.items[key] = None
    record_call(variable, "update", TupleVariable([key.variable]))
    return True


def discard(variable: SetVariable, key: DictKey) -> bool:
    """Removes an item as the program does; returns whether the set had it."""
    if key not in variable.items:
        return False
    del variable.items[key]
    record_call(variable, "difference_update", TupleVariable([key.variable]))
    return True


def clear(variable: SetVariable) -> None:
    """Removes all items."""
    variable.items.clear()
    variable.changes += 1
    variable.real = set() if variable.source is None else None


def record_call(variable: SetVariable, method: str, *operands: VariableTracker) -> None:
    """Records a change of a set by the program, and makes the same change of the real set if its order stays known."""
    variable.changes += 1
    if variable.source is None and isinstance(variable.real, set):
        try:
            getattr(variable.real, method)(*map(_real_operand, operands))
        except NotConstant:
            variable.real = None


def pop(variable: SetVariable) -> DictKey | None:
    """Removes the item that `pop` returns; None if unknown."""
    keys = list(variable.items)
    if variable.source is None and isinstance(variable.real, set):
        value = variable.real.pop()
        key = next(key for key in keys if key.token == value)
    elif len(keys) == 1:
        (key,) = keys
        variable.real = None
    else:
        return None
    del variable.items[key]
    variable.changes += 1
    return key


def ordered_keys(tx: Tracer, variable: SetVariable) -> list[DictKey] | None:
    """Returns the items in the program's order, and guards the order; None if unknown."""
    keys = list(variable.items)
    if len(keys) < 2:
        return keys
    if variable.real is None:
        return None
    if variable.source is None:
        by_value = {key.token: key for key in keys}
        return [by_value[value] for value in variable.real]
    if tx.side_effects.is_changed(variable):
        return None
    if not isinstance(variable.source, Constant):
        tx.guard(variable.source, GuardKind.DICT_KEYS, tuple(map(source_key, variable.real)))
    return keys
