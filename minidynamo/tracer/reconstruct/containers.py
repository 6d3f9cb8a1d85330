"""Owns how containers and lazy texts are rebuilt, and how external containers get their new contents.

Instances of the user's subclasses are not here (`objects.py`); their contents are filled by functions of this file.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from minidynamo.guards.values import CONTAINERS
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList, Slot
from minidynamo.tracer.reconstruct.builders import builds, fills
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder, cannot_rebuild, tuple_literal
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.immutable_classes import ISO_CALENDAR_DATE
from minidynamo.variables.base import LazyTextVariable, VariableTracker
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    DictViewVariable,
    ListVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)


@builds(LazyTextVariable, hint="text")
def _text(rebuild: Rebuilder, variable: LazyTextVariable) -> str:
    return f"{rebuild.constant(variable.make)}({rebuild.values(variable.operands)})"


@builds(ListVariable, hint="items")
def _list(rebuild: Rebuilder, variable: ListVariable) -> str:
    items = f"[{rebuild.values(variable.items.lazy())}]"
    if variable.cls is list:
        return items
    return f"{rebuild.constant(variable.cls)}({items}{'' if variable.maxlen is None else f', {variable.maxlen}'})"


def _empty_list(rebuild: Rebuilder, variable: ListVariable) -> str:
    return "[]" if variable.cls is list else f"{rebuild.constant(variable.cls)}((), {variable.maxlen})"


@fills(ListVariable, empty=_empty_list)
def _fill_list(rebuild: Rebuilder, variable: ListVariable, name: str) -> None:
    rebuild.lines.append(f"{name}.extend([{rebuild.values(variable.items.lazy())}])")


@builds(TupleVariable, hint="group")
def _tuple(rebuild: Rebuilder, variable: TupleVariable) -> str:
    if variable.cls is ISO_CALENDAR_DATE:
        return f"{rebuild.constant(variable.cls)}{tuple(map(as_constant, variable.items))}"
    items = tuple_literal(rebuild.value(item) for item in variable.items.lazy())
    if variable.cls is tuple:
        return items
    cls = rebuild.constant(variable.cls)
    if hasattr(variable.cls, "_fields"):  # a namedtuple, whose __new__ may be the user's
        return f"{rebuild.constant(tuple)}.__new__({cls}, {items})"
    return f"{cls}({items})"


def _pairs(rebuild: Rebuilder, variable: DictVariable) -> str:
    entries = variable.items.lazy().items()
    pairs = [f"{rebuild.hashed(key.variable)}: {rebuild.value(value)}" for key, value in entries]
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


@builds(DictViewVariable)
def _dict_view(rebuild: Rebuilder, variable: DictViewVariable) -> str:
    return f"{rebuild.value(variable.mapping)}.{variable.kind}()"


@builds(SliceVariable)
def _slice(rebuild: Rebuilder, variable: SliceVariable) -> str:
    return f"{rebuild.constant(slice)}({rebuild.values((variable.start, variable.stop, variable.step))})"


@builds(SetVariable, hint="members")
def _set(rebuild: Rebuilder, variable: SetVariable) -> str:
    if variable.is_literal:
        return rebuild.constant(variable.real, "items")
    if variable.real:  # constants alone; a copy has the same order
        return f"{rebuild.constant(variable.cls)}({rebuild.constant(frozenset(variable.real), 'items')})"
    members = _members(rebuild, variable)
    if variable.cls is frozenset:
        return f"{rebuild.constant(frozenset)}(({members}))"
    return f"{{{members}}}" if members else f"{rebuild.constant(set)}()"


def _members(rebuild: Rebuilder, variable: SetVariable) -> str:
    return "".join([f"{rebuild.hashed(key.variable)}, " for key in variable.items])


@fills(SetVariable, empty=lambda rebuild, variable: f"{rebuild.constant(set)}()")
def _fill_set(rebuild: Rebuilder, variable: SetVariable, name: str) -> None:
    rebuild.lines.append(f"{name}.update(({_members(rebuild, variable)}))")


# New contents


def refill_once(rebuild: Rebuilder, container: VariableTracker) -> list[str]:
    """Returns statements that fill an external container with the new contents; none if already done."""
    if container in rebuild.refilled:
        return []
    rebuild.refilled.add(container)
    return refill(rebuild, container, rebuild.value(container))


def refill(rebuild: Rebuilder, variable: VariableTracker, name: str, *, is_empty: bool = False) -> list[str]:
    """Returns statements that fill the container called `name` with the tracker's contents, through base classes."""
    items = getattr(variable, "items", None)
    if isinstance(items, LazyList) and isinstance(variable, ListVariable):
        return _change_list(rebuild, variable, items, name)
    if isinstance(items, LazyDict) and isinstance(variable, DictVariable | SetVariable):
        return _change_table(rebuild, variable, items, name)
    owner = _owner(rebuild, variable)
    lines = [] if is_empty else [f"{owner}.clear({name})"]
    if isinstance(variable, DictVariable):
        return lines + _set_items(rebuild, variable, name, variable.items.lazy())
    if isinstance(variable, SetVariable):
        return [*lines, f"{owner}.update({name}, ({_members(rebuild, variable)}))"]
    assert isinstance(variable, ListVariable)
    return lines + [f"{owner}.extend({name}, [{rebuild.values(variable.items.lazy())}])"] * bool(variable.items)


def _owner(rebuild: Rebuilder, variable: VariableTracker) -> str:
    """Returns the built-in class whose methods change the container; methods of a subclass are not called."""
    if not isinstance(variable, DictVariable | ListVariable | SetVariable):
        raise cannot_rebuild(variable)
    return rebuild.constant(next(base for base in variable.cls.__mro__ if base in CONTAINERS))


def _set_items(
    rebuild: Rebuilder, variable: DictVariable, name: str, items: Mapping[DictKey, VariableTracker]
) -> list[str]:
    owner = _owner(rebuild, variable)
    pairs = [(rebuild.hashed(key.variable), rebuild.value(value)) for key, value in items.items()]
    if len(pairs) == 1 or issubclass(variable.cls, collections.OrderedDict):  # its update() calls an overridden method
        return [f"{owner}.__setitem__({name}, {key}, {value})" for key, value in pairs]
    return [f"{owner}.update({name}, {{{', '.join(f'{key}: {value}' for key, value in pairs)}}})"] * bool(pairs)


def _change_list(rebuild: Rebuilder, variable: ListVariable, items: LazyList, name: str) -> list[str]:
    """Returns statements for the changes of an external list: new items, or everything after the unchanged items."""
    owner = _owner(rebuild, variable)
    unchanged, rest = items.changes()
    if unchanged is None:
        lines = _prepend(rebuild, variable, items.prepended(), name)
        if len(rest) == 1:
            return [*lines, f"{owner}.append({name}, {_slots(rebuild, variable, rest, name)})"]
        return lines + [f"{owner}.extend({name}, [{_slots(rebuild, variable, rest, name)}])"] * bool(rest)
    if not rest and not unchanged:
        return [f"{owner}.clear({name})"]
    contents = f"[{_slots(rebuild, variable, rest, name)}]"
    if issubclass(variable.cls, collections.deque):
        everything = f"[{_slots(rebuild, variable, [*range(unchanged), *rest], name)}]"
        new = rebuild.names.fresh("contents")
        return [f"{new} = {everything}", f"{owner}.clear({name})", f"{owner}.extend({name}, {new})", f"del {new}"]
    return [f"{owner}.__setitem__({name}, {rebuild.constant(slice)}({unchanged}, None), {contents})"]


def _prepend(rebuild: Rebuilder, variable: ListVariable, items: list[VariableTracker], name: str) -> list[str]:
    """Returns a statement that inserts elements before all others."""
    owner = _owner(rebuild, variable)
    if issubclass(variable.cls, collections.deque):
        return [f"{owner}.extendleft({name}, [{rebuild.values(items[::-1])}])"] * bool(items)
    return [f"{owner}.__setitem__({name}, {rebuild.constant(slice)}(0, 0), [{rebuild.values(items)}])"] * bool(items)


def _slots(rebuild: Rebuilder, variable: ListVariable, slots: Sequence[Slot], name: str) -> str:
    """Returns comma-separated texts of elements. Initial elements are read before anything changes."""
    owner = _owner(rebuild, variable)
    return ", ".join(
        [rebuild.value(s) if isinstance(s, VariableTracker) else f"{owner}.__getitem__({name}, {s})" for s in slots]
    )


def _change_table(rebuild: Rebuilder, variable: DictVariable | SetVariable, items: LazyDict, name: str) -> list[str]:
    """Returns statements for the changes of an external dict or set: deleted keys and written keys."""
    owner = _owner(rebuild, variable)
    lines = [f"{owner}.clear({name})"] * items.is_cleared
    if isinstance(variable, SetVariable):
        lines += [f"{owner}.discard({name}, {rebuild.hashed(key.variable)})" for key in items.removed]
        return lines + [f"{owner}.add({name}, {rebuild.hashed(key.variable)})" for key in items.written]
    lines += [f"{owner}.__delitem__({name}, {rebuild.hashed(key.variable)})" for key in items.removed]
    return lines + _set_items(rebuild, variable, name, items.written)
