"""Owns the replay of side effects after a graph: the statements per kind of effect, and the messages for lost effects.

The choice and order of the effects is not here (`tracer/capture/residual.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minidynamo.tracer.reachable import is_external, target_of
from minidynamo.tracer.reconstruct.containers import refill_once
from minidynamo.tracer.reconstruct.objects import dictionary_of, hides_attribute, set_attribute
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.records.side_effects import (
    AttrDeleted,
    AttrSet,
    Called,
    CellSet,
    ContentsChanged,
    CounterAdvanced,
    Effect,
    GlobalSet,
)
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable

_OF_ATTRIBUTES = (AttrSet, AttrDeleted)


def replay(rebuild: Rebuilder, effect: Effect) -> list[str]:
    """Returns statements that execute an effect; new objects are already built with all attributes.

    Exceptions: tensors leave the graph without attributes, and dicts are built with their items only."""
    target = target_of(effect)
    bare = isinstance(target, TensorVariable) or (
        isinstance(target, DictVariable) and isinstance(effect, _OF_ATTRIBUTES)
    )
    if target is not None and not is_external(target) and not bare:
        return []
    return _REPLAYS[type(effect)](rebuild, effect)


def _contents(rebuild: Rebuilder, effect: ContentsChanged) -> list[str]:
    return refill_once(rebuild, effect.container)


def _set_attr(rebuild: Rebuilder, effect: AttrSet) -> list[str]:
    value = rebuild.value(effect.value)
    return [set_attribute(rebuild, effect.obj, rebuild.value(effect.obj), effect.name, value)]


def _delete_attr(rebuild: Rebuilder, effect: AttrDeleted) -> list[str]:
    obj = rebuild.value(effect.obj)
    if hides_attribute(effect.obj, effect.name):
        return [f"del {dictionary_of(rebuild, effect.obj, obj)}[{effect.name!r}]"]
    owner = rebuild.constant(type if isinstance(effect.obj, ClassVariable) else object)
    return [f"{owner}.__delattr__({obj}, {effect.name!r})"]


def _advance(rebuild: Rebuilder, effect: CounterAdvanced) -> list[str]:
    return [f"{rebuild.value(effect.obj)}.{effect.name} += {effect.by}"]


def _set_cell(rebuild: Rebuilder, effect: CellSet) -> list[str]:
    cell = rebuild.value(effect.cell)
    if effect.value is None:
        return [f"del {cell}.cell_contents"]
    return [f"{cell}.cell_contents = {rebuild.value(effect.value)}"]


def _set_global(rebuild: Rebuilder, effect: GlobalSet) -> list[str]:
    global_item = f"{rebuild.names.constant(effect.namespace, 'G')}[{effect.name!r}]"
    return [f"del {global_item}" if effect.value is None else f"{global_item} = {rebuild.value(effect.value)}"]


def _call(rebuild: Rebuilder, effect: Called) -> list[str]:
    arguments = [rebuild.value(argument) for argument in effect.args]
    arguments += [f"{name}={rebuild.value(value)}" for name, value in effect.kwargs.items()]
    return [f"{rebuild.value(effect.function)}({', '.join(arguments)})"]


_REPLAYS: dict[type[Effect], Callable[[Rebuilder, Any], list[str]]] = {
    ContentsChanged: _contents,
    AttrSet: _set_attr,
    AttrDeleted: _delete_attr,
    CounterAdvanced: _advance,
    CellSet: _set_cell,
    GlobalSet: _set_global,
    Called: _call,
}


def lost_effects(effects: Sequence[Effect]) -> str:
    """Returns the targets of the effects, for a message."""
    names: dict[str, None] = {}
    for effect in effects:
        target = target_of(effect)
        if isinstance(effect, GlobalSet):
            names[f"global `{effect.name}`"] = None
        elif isinstance(effect, Called):
            names["calls"] = None
        elif target is not None and target.source is not None:
            attribute = f".{effect.name}" if isinstance(effect, (*_OF_ATTRIBUTES, CounterAdvanced)) else ""
            names[f"`{target.source.display()}{attribute}`"] = None
    return f"The changes to {', '.join(names) or 'closed-over variables'}"
