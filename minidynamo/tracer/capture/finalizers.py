"""Owns the visible deaths of objects: whether a finalizer runs when an object dies, and whether an object may already
be dead.

While a frame is traced, all of its real values are alive, so nothing dies at the point where it would die in eager. If
the program can see the difference, the graph is cut and Python frees the object. `tracer/calls/construct.py` decides
about new objects with `__del__`.

Side effects are replayed after the graph. A replayed write to an external object frees the old value too late for a
program that reads the work of its finalizer, in this call or in a later call. The graph therefore ends before the
write: `LostReferences` has the objects that lose a reference.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.source import Attr, CellContents, InstanceAttr, Local, Source, global_source
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.capture.deaths import (
    any_dying,
    any_has_finalizers,
    any_is_observed,
    has_gradient,
    holds_nothing,
)
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.graph.dead_code import is_pure
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.reachable import parts
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.side_effects import (
    AttrDeleted,
    AttrSet,
    Called,
    CellSet,
    ContentsChanged,
    Effect,
    GlobalSet,
    SideEffects,
)
from minidynamo.variables.base import ConstantVariable, LazyTextVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable

_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_VALUES = (ConstantVariable, NumberVariable)


def is_visibly_alive(frame: Frame, variable: VariableTracker) -> bool:
    """Returns whether the program can see that a local stays alive after its last use in the frame."""
    held = [_real(frame, value) for value in _held_by([variable], frame.tx.side_effects)]
    return dies_any(frame.tx.graph, held, (), any_is_observed)


def stays_bound_after_break(frame: Frame, variable: VariableTracker) -> bool:
    """Returns whether a local that is not read after a break stays bound after the break, unless it is bound again."""
    source = variable.source
    return source in frame.entry_values and _may_hold_objects(frame.entry_values[source])


def _may_hold_objects(value: object) -> bool:
    """Returns whether an argument may keep more objects alive than itself: a container or an object.

    An early death of such a value could be visible: a guard would have to check all objects that die at the same time.
    """
    return not issubclass(type(value), torch.Tensor) and not is_constant_value(value)


def _real(frame: Frame, variable: VariableTracker) -> object:
    if isinstance(variable, LazyTextVariable):
        return None
    found = variable.unguarded_value if isinstance(variable, ConstantVariable) else getattr(variable, "value", None)
    return frame.entry_values.get(variable.source) if found is None and variable.source is not None else found


def record_unbinding(frame: Frame, name: str) -> bool:
    """Records that a local is bound again or deleted. Returns whether a value dies and its finalizer may run.

    Only arguments of a root frame, and parts of arguments, can die: all other values are held elsewhere, or new.
    """
    value = frame.local_slots.get(name)
    value = None if value is None else value.realized()
    if frame is not frame.tx.frames[0] or value is None or value.source is None:
        return False
    held = [other.source for other in frame.held()]
    if not isinstance(_root(value.source), Local) or held.count(value.source) > 1:
        return False
    if any(source in held for source in value.source.bases()) and not list(_replaced_values(frame.tx)):
        return False  # the containing object is still alive
    real = _real(frame, value)
    frame.dropped[value.source] = value if real is None else real
    return _death_is_visible(frame, real)


def argument_died(frame: Frame) -> bool:
    """Returns whether an argument of the root frame with a finalizer has died in the last step."""
    if not frame.temporary:
        return False
    contents = (cell.contents for cell in frame.cells.values())
    held = {id(_real(frame, value)) for value in (*frame.held(), *contents) if value is not None}
    for source, real in [*frame.temporary.items()]:
        if id(real) in held:
            continue
        frame.dropped[source] = frame.temporary.pop(source)
        if _death_is_visible(frame, real):
            return True
    return False


def kept_to_the_end(frame: Frame, left: Iterable[VariableTracker], *, returns: bool) -> frozenset[Source]:
    """Returns the sources of the arguments kept alive by a root frame until the end.

    Every other argument that the frame does not return may die earlier: tensors die in the graph, all other values at a
    break.
    """
    graph = frame.tx.graph
    released = {value.source for value in left} | frame.dropped.keys()
    lasting = set[Source]()
    is_quiet = returns and not frame.tx.side_effects.journal
    for source, value in frame.entry_values.items():
        variable = graph.known(source)
        if source in released or is_constant_value(value):
            continue
        emptied = variable is not None and frame.tx.side_effects.is_changed(variable)  # for example `**kwargs`
        if returns and not emptied and _may_hold_objects(value):
            lasting.add(source)
            continue
        if is_quiet and isinstance(variable, TensorVariable) and not _may_read_after_death(variable):
            continue
        if not dies_any(graph, [value], (), any_is_observed):
            continue
        if emptied:
            what = f"{frame.code.co_name} runs eagerly: it removes an object with a finalizer from its arguments"
            raise SkipFrame(Diagnostic("MD206", what, why="The program can see when the object dies."))
        lasting.add(source)
    return frozenset(lasting)


def _may_read_after_death(tensor: TensorVariable) -> bool:
    """Returns whether the graph may read, after a tensor has died, an input to which a callback of the tensor writes.

    A node cannot if it reads only results of other nodes, or if it also reads the tensor, in any order of the nodes.
    """
    nodes = tensor.node.graph.nodes
    if not all(is_pure(node) for node in nodes if node.op.startswith("call")):
        return True
    others = (node for node in nodes if node.op == "placeholder" and node is not tensor.node)
    return any(tensor.node not in user.all_input_nodes for other in others for user in other.users)


def _held_by(roots: Iterable[VariableTracker], effects: SideEffects) -> Iterator[VariableTracker]:
    """Yields the values, their parts, and the values written to them."""
    todo, seen = [*roots], set[VariableTracker]()
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            yield value
            if value.source is None or not isinstance(value, TupleVariable):
                todo.extend(parts(value, effects))


def _death_is_visible(frame: Frame, real: object) -> bool:
    return not is_constant_value(real) and dies_any(frame.tx.graph, [real], (), any_has_finalizers)


def _root(source: Source) -> Source:
    return _path(source)[-1]


def may_be_dead(tx: Tracer, is_tensor: bool) -> bool:
    """Returns whether an object that was alive when the frame was entered may have lost its last reference."""
    root = tx.frames[0]
    values = chain(root.cells.values(), *(frame.held() for frame in tx.frames))
    held = {source for value in values if value.source for source in _path(value.source)}
    consumed = [real for source, real in root.entry_values.items() if source not in held]
    return any(_may_hold(value, is_tensor) for value in (*root.dropped.values(), *consumed, *_replaced_values(tx)))


def is_held(tx: Tracer, variable: VariableTracker) -> bool:
    """Returns whether an object made during tracing is certainly alive: a variable of a frame refers to it."""
    held = chain(*(frame.held() for frame in tx.frames))
    return any(variable in (value, value.contents if isinstance(value, CellVariable) else None) for value in held)


def _path(source: Source) -> tuple[Source, ...]:
    return (source, *source.bases())


def _may_hold(value: object, is_tensor: bool) -> bool:
    """Returns whether a value may be the only reference to another object, or may be the object itself. `is_tensor`:
    the object is a tensor."""
    if is_constant_value(value) or issubclass(type(value), (*_LASTING, *_VALUES)):
        return False
    if type(value) in (dict, tuple) and not value:
        return False
    return is_tensor or not issubclass(type(value), (torch.Tensor, TensorVariable))


def _replaced_values(tx: Tracer) -> Iterator[Any]:
    """Yields the values in external objects before the side effects so far; the effect itself for an unknown value."""
    for effect in tx.side_effects.journal:
        target = getattr(effect, "container", None) or getattr(effect, "obj", None) or getattr(effect, "cell", None)
        is_new = target is not None and target.source is None and not _is_real(target)
        if not is_new and not isinstance(effect, Called):
            yield _old_value(effect)


def _is_real(target: object) -> bool:
    return isinstance(target, CellVariable) and target.cell is not None


def _old_value(effect: Effect) -> Any:
    """Returns the value replaced by an effect, if a read runs no code; else the effect."""
    if isinstance(effect, AttrSet) and isinstance(effect.obj, ObjectVariable):
        names = getattr(effect.obj.value, "__dict__", None)
        return names.get(effect.name) if type(names) is dict else effect
    if isinstance(effect, GlobalSet):
        return effect.namespace.get(effect.name)
    if isinstance(effect, CellSet) and effect.cell.cell is not None:
        try:
            return effect.cell.cell.cell_contents
        except ValueError:
            return None
    return effect


VISIBLE_DEATH = "the program drops an object with `__del__`, or with weak references that have callbacks"


class LostReferences:
    """The objects that external objects no longer refer to, after the writes of a trace."""

    def __init__(self, graph: OutputGraph) -> None:
        self._graph = graph
        #: the lost values that may hold other objects, each with its former source; by id
        self._lost: dict[int, tuple[Source | None, object]] = {}

    def has_finalizers(self, effect: Effect) -> bool:
        """Returns whether an effect, not yet in the journal, ends the life of an object with a finalizer: an object
        dies with the last of its references."""
        lost = [(source, value) for source, value in _lost_values(self._graph, effect) if id(value) not in self._lost]
        if any_has_finalizers([value for _, value in lost]):
            return True
        holders = {id(value): (source, value) for source, value in lost if not holds_nothing(value)}
        if not holders:
            return False
        self._lost |= holders
        sources, values = zip(*self._lost.values())
        return dies_any(self._graph, values, sources, any_has_finalizers)


def dies_any(
    graph: OutputGraph,
    lost: Iterable[object],
    old_sources: Iterable[Source | None],
    predicate: Callable[[list[Any]], bool],
) -> bool:
    """Returns whether `predicate` is True for the objects that die with `lost`, formerly at `old_sources`.

    An object whose source starts at one of `old_sources` dies, too, although a tracker refers to the object.
    """
    values = [*lost]
    sources = {*old_sources, *map(graph.source_of, values)} - {None}
    certain = {*map(id, values)}

    def dies(part: object) -> bool:
        source = graph.source_of(part)
        return id(part) in certain or (source is not None and not sources.isdisjoint(source.bases()))

    return any_dying(values, predicate, dies)


def _lost_values(graph: OutputGraph, effect: Effect) -> list[tuple[Source | None, object]]:
    """Returns the values replaced by an effect, each with its source."""
    match effect:
        case ContentsChanged(ListVariable() | DictVariable() | SetVariable() as container):
            items = container.items
            return items.lost_values() if isinstance(items, LazyList | LazyDict) else []
        case GlobalSet(namespace, name):
            return _with_source(global_source(namespace, name), _item(namespace, name))
        case CellSet(cell) if cell.cell is not None and cell.source is not None:
            return _with_source(CellContents(cell.source), _stored(cell.cell, "cell_contents"))
        case AttrSet(obj, name) | AttrDeleted(obj, name) if obj.source is not None:
            return _lost_attribute(graph, obj, obj.source, name)
    return []


def _with_source(source: Source, values: Iterable[object]) -> list[tuple[Source | None, object]]:
    return [(source, value) for value in values]


def _lost_attribute(
    graph: OutputGraph, obj: VariableTracker, source: Source, name: str
) -> list[tuple[Source | None, object]]:
    if isinstance(obj, TensorVariable) and name == "grad":
        real = graph.real(obj)
        return [] if real is None or not has_gradient(real) else [(Attr(source, name), real.grad)]
    value = graph.real(obj) if isinstance(obj, TensorVariable) else getattr(obj, "value", None)
    if issubclass(type(value), type):
        return _with_source(Attr(source, name), _item(vars(value), name))
    if inspect.ismemberdescriptor(inspect.getattr_static(type(value), name, None)):
        return _with_source(Attr(source, name), _stored(value, name))
    attributes = None if value is None else instance_dict(value)
    return _with_source(InstanceAttr(source, name), _item(attributes, name)) if type(attributes) is dict else []


def _item(values: Mapping[str, object], name: str) -> tuple[object, ...]:
    return (values[name],) if name in values else ()


def _stored(owner: object, slot: str) -> tuple[object, ...]:
    try:
        return (object.__getattribute__(owner, slot),)
    except (AttributeError, ValueError):
        return ()
