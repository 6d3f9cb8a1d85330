"""Owns the order in which tracked sets give their items.

Equal sets may iterate in different orders: it depends on the hashes and on how the set came to be. So there is an order
only where a real set stands behind the tracker, one from outside, or one made here by the steps of the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, stand_in
from minidynamo.tracer.constants import NotConstant, as_constant
from minidynamo.tracer.outside_items import OutsideTable
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, SetVariable, TupleVariable

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


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


def set_of(items: list[VariableTracker]) -> set[Any] | None:
    """The set that a program makes by adding these one after the other; None when their hashes are not known."""
    try:
        return set(_plain_values(items))
    except NotConstant:
        return None


def add(variable: SetVariable, key: DictKey) -> bool:
    """Add an item as the program does; whether it was not there, as far as that is known."""
    unknown = isinstance(variable.items, OutsideTable) and not variable.items.is_read
    if not unknown and key in variable.items:
        return False
    variable.items[key] = None
    real = variable.real
    added = set_of([key.variable])
    if variable.source is not None or added is None or not isinstance(real, set):
        variable.real = None
    else:
        real.add(*added)
    return True


def discard(variable: SetVariable, key: DictKey) -> bool:
    """Remove an item as the program does; whether it was there."""
    if key not in variable.items:
        return False
    del variable.items[key]
    if variable.source is not None or not isinstance(variable.real, set):
        variable.real = None
    else:
        variable.real.discard(key.token)
    return True


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


def arrangement(variable: SetVariable) -> list[DictKey] | frozenset[Any] | None:
    """What to make a set of, so that it has the order of one that was made here; None when nothing at hand will do.

    Any order of the items when the program's is not known.
    """
    keys = list(variable.items)
    if variable.real is None or len(keys) < 2:
        return keys
    order = list(variable.real)
    by_value = {key.token: key for key in keys}
    for values in ([key.token for key in keys], order):
        if list(variable.cls(values)) == order:
            return [by_value[value] for value in values]
    copied = frozenset(variable.real)
    return copied if list(variable.cls(copied)) == order else None
