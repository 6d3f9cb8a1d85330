"""Owns the iteration order of tracked sets, and the steps that built each set and so decide the order.

Equal sets may iterate in different orders: the order depends on the hashes and on the history of the set. So the order
is known during tracing only if the tracker has a real set: an external set, or a set that repeats the steps of the
program. After the graph the residual program repeats the steps, and the hash tables of the sets equal eager's bit for
bit (`tracer/reconstruct/containers.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, source_key
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.records.constants import NotConstant, as_constant, key_of
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    SetStep,
    SetVariable,
    TupleVariable,
)
from minidynamo.variables.objects import ObjectVariable

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
ADD, DISCARD, CLEAR, POP = "add", "discard", "clear", "pop"


def _plain_values(items: Iterable[VariableTracker]) -> list[Any]:
    """Returns the values of constants whose hash is the same in every call; raises NotConstant for any other item."""
    values = []
    for item in items:
        if isinstance(item, TupleVariable) and item.cls is tuple:
            values.append(tuple(_plain_values(item.items)))
        elif isinstance(item, ConstantVariable) and type(item.value) in _PLAIN and item.value == item.value:
            values.append(as_constant(item))
        else:
            raise NotConstant(type(item).__name__)
    return values


def _repeats_steps(variable: SetVariable) -> bool:
    """Returns whether `real` repeats the steps of the program; an external set is never changed."""
    return variable.source is None and isinstance(variable.real, set)


def new_set(keys: Iterable[DictKey]) -> SetVariable:
    """Returns the set that a program makes by adding these keys in order."""
    made = SetVariable({}, real=set())
    for key in keys:
        add(made, key)
    return made


def add(variable: SetVariable, key: DictKey) -> bool:
    """Adds an item as the program does; returns whether it is new, as far as known."""
    unknown = isinstance(variable.items, LazyDict) and not variable.items.is_read
    if not unknown and key in variable.items:
        return False
    variable.items[key] = None
    record_step(variable, SetStep(ADD, (key.variable,)))
    return True


def discard(variable: SetVariable, key: DictKey) -> bool:
    """Removes an item as the program does; returns whether the set had it."""
    if key not in variable.items:
        return False
    del variable.items[key]
    added = SetStep(ADD, (key.variable,))
    if _is_new(key.variable) and added in variable.steps and not variable.is_operand:
        # A new object's address differs in each call anyway. The step may use any new object, and the present object
        # can die.
        position, instead = variable.steps.index(added), _substitute(key.variable)
        variable.steps[position] = replace(variable.steps[position], operands=(instead,))
        record_step(variable, SetStep(DISCARD, (instead,)))
    else:
        record_step(variable, SetStep(DISCARD, (key.variable,)))
    return True


def _substitute(variable: VariableTracker) -> VariableTracker:
    """Returns a substitute for a new object in a set."""
    if isinstance(variable, TupleVariable):
        return TupleVariable([_substitute(item) if _is_new(item) else item for item in variable.items])
    return ObjectVariable(None, object)


def _is_new(variable: VariableTracker) -> bool:
    """Returns whether the value is a new object: its hash differs in each call."""
    if isinstance(variable, TupleVariable):
        return any(map(_is_new, variable.items))
    return isinstance(key_of(variable).token, VariableTracker) and not variable.source


def record_step(variable: SetVariable, step: SetStep) -> None:
    """Records a change of a set by the program, including a change that only reorders the items."""
    variable.changes += 1
    operands = [exact(operand) for operand in step.operands]
    known = [operand[0] for operand in operands if operand is not None]
    if not _repeats_steps(variable) or len(known) < len(operands):
        variable.real = None
    else:
        getattr(set, step.method)(variable.real, *known)
    if step.method != CLEAR or variable.is_operand or any(before.method == POP for before in variable.steps):
        variable.steps.append(step)
    else:
        variable.creation = None
        variable.steps[:] = [] if variable.source is None else [step]
        variable.real = set() if variable.source is None else None


def popped(variable: SetVariable) -> DictKey | None:
    """Removes the item that `pop` returns; None if unknown."""
    keys = list(variable.items)
    if _repeats_steps(variable):
        value = variable.real.pop()  # type: ignore[union-attr]
        key = next(key for key in keys if key.token == value)
    elif len(keys) == 1:
        (key,) = keys
        variable.real = None
    else:
        return None
    del variable.items[key]
    variable.changes += 1
    variable.steps.append(SetStep(POP))
    return key


def exact(variable: VariableTracker) -> tuple[Any] | None:
    """Returns a 1-tuple with a real value that acts on sets as this value does; None if no such value exists.

    The tuple distinguishes the value None."""
    if isinstance(variable, SetVariable):
        # For an external set only the order is guarded, not the steps that built it.
        is_exact = variable.source is None or isinstance(variable.source, Constant)
        return (variable.real,) if is_exact and variable.real is not None else None
    try:
        if isinstance(variable, DictVariable):
            return (dict.fromkeys(_plain_values(key.variable for key in variable.items)),)
        (value,) = _plain_values([variable])
    except NotConstant:
        return None
    return (value,)


def as_operand(tx: Tracer, variable: VariableTracker) -> VariableTracker:
    """Returns the operand of a step for a set, dict or sequence, with the present contents."""
    if isinstance(variable, SetVariable):
        variable.is_operand = True
        return variable
    if isinstance(variable, DictVariable):
        return DictVariable(dict.fromkeys(variable.items, ConstantVariable(None)))
    return TupleVariable(tx.unpack(variable))


def _real_set(cls: type, step: SetStep) -> Any:
    """Returns the real set that a first step makes; None if unknown."""
    found = [exact(operand) for operand in step.operands]
    operands: Sequence[Any] = [operand[0] for operand in found if operand is not None]
    if len(operands) < len(found):
        return None
    if step.method == "new":
        return cls(*operands)
    return getattr(cls, step.method)(*operands)


def set_of_step(items: Iterable[DictKey], cls: type, step: SetStep) -> SetVariable:
    """Returns a set of the given items that the program makes in a single step."""
    return SetVariable(dict.fromkeys(items), cls, _real_set(cls, step), step)


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
