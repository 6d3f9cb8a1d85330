"""Owns how sets are rebuilt, and how external sets change: by the same calls as in the program, in the same order.

The iteration order of a set depends on its whole history, and on the history of the sets it was made of. So the steps
of all sets run first; all other values are rebuilt and stored later. The order itself is not computed here
(`calls/set_order.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeGuard

from minidynamo.tracer.calls.set_order import ADD
from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, cannot_rebuild, tuple_literal
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import SetStep, SetVariable
from minidynamo.variables.objects import ObjectVariable


def replay_set_steps(rebuild: Rebuilder, found: Iterable[VariableTracker]) -> None:
    """Makes the new sets among these values, and changes the external sets."""
    found = [*found]
    for holder in found:
        if isinstance(holder, ObjectVariable) and holder.source is None and _changes(holder.storage):
            rebuild.begin_object(holder, holder.storage)
    history = [(step, variable) for variable in found if isinstance(variable, SetVariable) for step in variable.steps]
    history += [(v.creation, v) for v in found if isinstance(v, SetVariable) and v.creation is not None]
    history.sort(key=lambda event: event[0].time)
    for (variable, method), events in itertools.groupby(history, lambda event: (event[1], event[0].method)):
        steps = [step for step, _ in events]
        if steps[0] is variable.creation:
            _name_after_first_step(rebuild, variable)
        else:
            rebuild.lines += _step_statements(rebuild, variable, method, steps)


def _changes(storage: VariableTracker | None) -> TypeGuard[SetVariable]:
    return isinstance(storage, SetVariable) and storage.cls is set


def _step_statements(rebuild: Rebuilder, variable: SetVariable, method: str, steps: list[SetStep]) -> list[str]:
    name, owner = _name_after_first_step(rebuild, variable), rebuild.constant(set)
    operands = [[rebuild.value(operand) for operand in step.operands] for step in steps]
    if method == ADD and len(operands) > 1:
        return [f"{owner}.update({name}, {tuple_literal(added for (added,) in operands)})"]
    return [f"{owner}.{method}({', '.join([name, *texts])})" for texts in operands]


def _name_after_first_step(rebuild: Rebuilder, variable: SetVariable) -> str:
    """Returns the name of a set after its first step."""
    text = rebuild.constant(variable.cls)
    if variable.creation is None:
        return rebuild.begin(variable, f"{text}()")
    method = "" if variable.creation.method == "new" else f".{variable.creation.method}"
    return rebuild.begin(variable, f"{text}{method}({rebuild.values(variable.creation.operands)})")


@builds(SetVariable, hint="members")
def _set_without_steps(rebuild: Rebuilder, variable: SetVariable) -> str:
    if variable.is_literal:
        return rebuild.constant(variable.real, "items")
    if variable.items:
        raise cannot_rebuild(variable)
    return f"{rebuild.constant(variable.cls)}()"
