"""Owns the order in which tracked sets give their items, and how they came to be, which decides it.

Equal sets may iterate in different orders: it depends on the hashes and on the history of the set. So there is an order
while tracing only where a real set stands behind the tracker, one from outside, or one made here by the steps of the
program. Behind the graph the steps are taken again, one by one, so that the sets are those of the program to the last
bit of their tables (`tracer/reconstruct/containers.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, stand_in
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.constants import NotConstant, as_constant, key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    SetStep,
    SetVariable,
    TupleVariable,
)
from minidynamo.variables.objects import IdVariable, ObjectVariable

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
ADD, DISCARD, CLEAR, POP = "add", "discard", "clear", "pop"


def _plain_values(items: Iterable[VariableTracker]) -> list[Any]:
    """The values of constants whose hash is the same at every call; raises NotConstant for others."""
    values = []
    for item in items:
        if isinstance(item, TupleVariable) and item.cls is tuple:
            values.append(tuple(_plain_values(item.items)))
        elif isinstance(item, ConstantVariable) and type(item.value) in _PLAIN and item.value == item.value:
            values.append(as_constant(item))
        else:
            raise NotConstant(type(item).__name__)
    return values


def _is_counted(variable: SetVariable) -> bool:
    """Whether `real` takes the steps of the program, too: a set from outside stays as it is."""
    return variable.source is None and isinstance(variable.real, set)


def new_set(keys: Iterable[DictKey]) -> SetVariable:
    """The set that a program makes by adding these one after the other."""
    made = SetVariable({}, real=set())
    for key in keys:
        add(made, key)
    return made


def add(variable: SetVariable, key: DictKey) -> bool:
    """Add an item as the program does; whether it was not there, as far as that is known."""
    unknown = isinstance(variable.items, LazyDict) and not variable.items.is_read
    if not unknown and key in variable.items:
        return False
    variable.items[key] = None
    took_step(variable, SetStep(ADD, (key.variable,)))
    return True


def discard(variable: SetVariable, key: DictKey) -> bool:
    """Remove an item as the program does; whether it was there."""
    if key not in variable.items:
        return False
    del variable.items[key]
    added = SetStep(ADD, (key.variable,))
    if _is_new(key.variable) and added in variable.steps and not variable.is_operand:
        # Where a new object was kept is different at each call, so it need not live on: any other will do.
        place, instead = variable.steps.index(added), _another(key.variable)
        variable.steps[place] = replace(variable.steps[place], operands=(instead,))
        took_step(variable, SetStep(DISCARD, (instead,)))
    else:
        took_step(variable, SetStep(DISCARD, (key.variable,)))
    return True


def _another(variable: VariableTracker) -> VariableTracker:
    """What a set may hold in the place of a new object."""
    if isinstance(variable, TupleVariable):
        return TupleVariable([_another(item) if _is_new(item) else item for item in variable.items])
    return ObjectVariable(None, object)


def _is_new(variable: VariableTracker) -> bool:
    """Whether it is an object that the program has made, or the address of one, whose hash is another at each call."""
    if isinstance(variable, TupleVariable):
        return any(map(_is_new, variable.items))
    return isinstance(variable, IdVariable) or (
        isinstance(key_of(variable).token, VariableTracker) and not variable.source
    )


def took_step(variable: SetVariable, step: SetStep) -> None:
    """Note what the program has done to a set, also where it only changes the places of the items."""
    variable.changes += 1
    operands = [exact(operand) for operand in step.operands]
    known = [operand[0] for operand in operands if operand is not None]
    if not _is_counted(variable) or len(known) < len(operands):
        variable.real = None
    else:
        getattr(set, step.method)(variable.real, *known)
    if step.method != CLEAR or variable.is_operand or any(before.method == POP for before in variable.steps):
        variable.steps.append(step)
    else:
        variable.made = None
        variable.steps[:] = [] if variable.source is None else [step]
        variable.real = set() if variable.source is None else None


def popped(variable: SetVariable) -> DictKey | None:
    """Remove the item that `pop` gives; None when it is not known which."""
    keys = list(variable.items)
    if _is_counted(variable):
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
    """A real value that sets take as they take this one, which also holds None; None when there is no such value."""
    if isinstance(variable, SetVariable):
        # Of a set from outside only the order is guarded, not how it came to be.
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
    """What to give to a step for this set, dict or sequence, so that it takes it as it is now."""
    if isinstance(variable, SetVariable):
        variable.is_operand = True
        return variable
    if isinstance(variable, DictVariable):
        return DictVariable(dict.fromkeys(variable.items, ConstantVariable(None)))
    return TupleVariable(tx.unpack(variable))


def _made_by(cls: type, step: SetStep) -> Any:
    """The real set that a first step makes; None when it is not known."""
    found = [exact(operand) for operand in step.operands]
    operands: Sequence[Any] = [operand[0] for operand in found if operand is not None]
    if len(operands) < len(found):
        return None
    if step.method == "new":
        return cls(*operands)
    return getattr(cls, step.method)(*operands)


def made_by(items: Iterable[DictKey], cls: type, step: SetStep) -> SetVariable:
    """A set of these items that the program makes by one step."""
    return SetVariable(dict.fromkeys(items), cls, _made_by(cls, step), step)


def ordered_keys(tx: Tracer, variable: SetVariable) -> list[DictKey] | None:
    """The items in the program's order, which is guarded from now on; None when it is not known."""
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
        tx.guard(variable.source, GuardKind.DICT_KEYS, tuple(map(stand_in, variable.real)))
    return keys
