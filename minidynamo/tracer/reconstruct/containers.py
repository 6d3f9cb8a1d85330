"""Owns how containers are rebuilt, and how those from outside get their new contents.

It does not build instances of the user's subclasses; `objects.py` does, and has their contents put in here.
"""

from __future__ import annotations

import collections

from minidynamo.guards.writers import CONTAINERS
from minidynamo.tracer.reconstruct.builders import builds, fills
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, cannot_rebuild, tuple_literal
from minidynamo.tracer.set_order import arrangement
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import (
    DictVariable,
    DictViewVariable,
    ListVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)


@builds(ListVariable, hint="items")
def _list(rebuild: Rebuilder, variable: ListVariable) -> str:
    items = f"[{rebuild.values(variable.items)}]"
    if variable.cls is list:
        return items
    return f"{rebuild.constant(variable.cls)}({items}{'' if variable.maxlen is None else f', {variable.maxlen}'})"


def _empty_list(rebuild: Rebuilder, variable: ListVariable) -> str:
    return "[]" if variable.cls is list else f"{rebuild.constant(variable.cls)}((), {variable.maxlen})"


@fills(ListVariable, empty=_empty_list)
def _fill_list(rebuild: Rebuilder, variable: ListVariable, name: str) -> None:
    rebuild.lines.append(f"{name}.extend([{rebuild.values(variable.items)}])")


@builds(TupleVariable, hint="group")
def _tuple(rebuild: Rebuilder, variable: TupleVariable) -> str:
    items = tuple_literal([rebuild.value(item) for item in variable.items])
    if variable.cls is tuple:
        return items
    cls = rebuild.constant(variable.cls)
    if hasattr(variable.cls, "_fields"):  # a namedtuple, whose __new__ may be the user's
        return f"{rebuild.constant(tuple)}.__new__({cls}, {items})"
    return f"{cls}({items})"


def _pairs(rebuild: Rebuilder, variable: DictVariable) -> str:
    pairs = [f"{rebuild.value(key.variable)}: {rebuild.value(value)}" for key, value in variable.items.items()]
    return f"{{{', '.join(pairs)}}}"


@builds(DictVariable, hint="mapping")
def _dict(rebuild: Rebuilder, variable: DictVariable) -> str:
    pairs = _pairs(rebuild, variable)
    return pairs if variable.cls is dict else _dict_of(rebuild, variable, pairs)


def _dict_of(rebuild: Rebuilder, variable: DictVariable, pairs: str) -> str:
    cls = rebuild.constant(variable.cls)
    if variable.cls is collections.defaultdict:
        factory = "None" if variable.default_factory is None else rebuild.value(variable.default_factory)
        return f"{cls}({factory}, {pairs})" if pairs else f"{cls}({factory})"
    return f"{cls}({pairs})"


def _empty_dict(rebuild: Rebuilder, variable: DictVariable) -> str:
    return "{}" if variable.cls is dict else _dict_of(rebuild, variable, "")


@fills(DictVariable, empty=_empty_dict)
def _fill_dict(rebuild: Rebuilder, variable: DictVariable, name: str) -> None:
    rebuild.lines.append(f"{name}.update({_pairs(rebuild, variable)})")


@builds(SetVariable)
def _set(rebuild: Rebuilder, variable: SetVariable) -> str:
    cls = rebuild.constant(variable.cls)
    return f"{cls}({set_items(rebuild, variable)})" if variable.items else f"{cls}()"


def set_items(rebuild: Rebuilder, variable: SetVariable) -> str:
    """Text for an iterable of the elements, in an order that gives the set its own."""
    keys = arrangement(variable) or variable.items
    if isinstance(keys, frozenset):
        return rebuild.constant(keys, "items")
    return tuple_literal([rebuild.value(key.variable) for key in keys])


@builds(DictViewVariable)
def _dict_view(rebuild: Rebuilder, variable: DictViewVariable) -> str:
    return f"{rebuild.value(variable.mapping)}.{variable.kind}()"


@builds(SliceVariable)
def _slice(rebuild: Rebuilder, variable: SliceVariable) -> str:
    return f"{rebuild.constant(slice)}({rebuild.values((variable.start, variable.stop, variable.step))})"


# New contents


def refill_once(rebuild: Rebuilder, container: VariableTracker) -> list[str]:
    """Statements that give a container from outside its new contents; none when that was done before."""
    if container in rebuild.refilled:
        return []
    rebuild.refilled.add(container)
    return refill(rebuild, container, rebuild.value(container))


def refill(rebuild: Rebuilder, variable: VariableTracker, name: str, *, is_empty: bool = False) -> list[str]:
    """Statements that give the container called `name` the contents that its tracker has, through base classes."""
    if isinstance(variable, DictVariable):
        return _refill_dict(rebuild, variable, name, is_empty)
    if not isinstance(variable, (ListVariable, SetVariable)):
        raise cannot_rebuild(variable)
    is_list = isinstance(variable, ListVariable)
    items = (
        f"[{rebuild.values(variable.items)}]" if isinstance(variable, ListVariable) else set_items(rebuild, variable)
    )
    owner = rebuild.constant(next(base for base in variable.cls.__mro__ if base in CONTAINERS))
    lines = [] if is_empty else [f"{owner}.clear({name})"]
    return lines + [f"{owner}.{'extend' if is_list else 'update'}({name}, {items})"] * bool(variable.items)


def _refill_dict(rebuild: Rebuilder, variable: DictVariable, name: str, is_empty: bool) -> list[str]:
    base = next(base for base in variable.cls.__mro__ if base in CONTAINERS)
    owner = rebuild.constant(base)
    lines = [] if is_empty else [f"{owner}.clear({name})"]
    if base is collections.OrderedDict:  # its update() would call an overridden __setitem__
        pairs = [(rebuild.value(key.variable), rebuild.value(value)) for key, value in variable.items.items()]
        return lines + [f"{owner}.__setitem__({name}, {key}, {value})" for key, value in pairs]
    return lines + [f"{owner}.update({name}, {_pairs(rebuild, variable)})"] * bool(variable.items)
