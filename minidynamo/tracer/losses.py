"""Owns what writes to things from outside let go of: whether somebody is told when that dies, now or at a later call.

The effects of a program are replayed behind its graph. What dies by one of them dies there, too late for a program that
goes on to look at what a finalizer or a callback has done; so the graph ends before the write. What locals let go of is
in `lifetimes.py`.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from minidynamo.guards.deaths import dies_unnoticed, is_noticed
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, CellContents, Constant, InstanceAttr, Referent, Source, global_source
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.outside_items import EVERYTHING, Loss, OutsideItems, OutsideTable
from minidynamo.tracer.side_effects import AttrDeleted, AttrSet, CellSet, ContentsChanged, Effect, GlobalSet
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

NOTICED_DEATH = "an object is given up that has `__del__`, or weak references with callbacks"

# From so many losses of one container on, one guard looks at all that it holds.
_MANY = 4
# So many objects are followed that die with one that is let go of.
_MOST = 20_000


class Losses:
    """What the writes of one trace let go of, as far as that is not a thing of the trace itself."""

    def __init__(self, graph: OutputGraph) -> None:
        self._graph = graph
        self._seen: set[tuple[Source, object]] = set()

    def is_noticed(self, effect: Effect) -> bool:
        """Whether an effect, which is not in the journal yet, ends the life of something that somebody watches.

        That nobody does is guarded.
        """
        owner, losses = _losses(self._graph, effect)
        if owner is None:
            return any(map(self._may_tell, losses))
        new = [loss for loss in losses if loss.key is EVERYTHING or (owner, loss.key) not in self._seen]
        self._seen |= {(owner, loss.key) for loss in new}
        new = [loss for loss in new if not self._is_plain(loss.place)]
        if any(map(self._may_tell, new)):
            return True
        container = effect.container if isinstance(effect, ContentsChanged) else None
        items = container.items if isinstance(container, ListVariable | DictVariable | SetVariable) else None
        many = len(new) >= _MANY and isinstance(items, OutsideItems | OutsideTable) and items.hold_nothing(is_noticed)
        if many or any(loss.key is EVERYTHING for loss in new):
            self._graph.guard(owner, GuardKind.UNNOTICED_DEATH, ())
        else:
            self._guard_each(owner, new)
        return False

    def _guard_each(self, owner: Source, losses: Iterable[Loss]) -> None:
        for loss in losses:
            if loss.place is not None:
                self._graph.guard(owner, GuardKind.UNNOTICED_DEATH, (loss.key,))
            if isinstance(loss.key, Referent):
                self._graph.guard(loss.key, GuardKind.UNNOTICED_DEATH, None)

    def _is_plain(self, place: Source | None) -> bool:
        """Whether the guards say that there is a number, text or the like."""
        known = None if place is None else self._graph.known(place)
        return isinstance(known, ConstantVariable | NumberVariable)

    def _may_tell(self, loss: Loss) -> bool:
        if not all(map(dies_unnoticed, loss.values)):  # that is what the guard will ask
            return True
        return any(is_noticed(value) for lost in loss.values for value in dying(lost, self._belongs_to(lost, loss)))

    def _belongs_to(self, value: object, loss: Loss) -> Callable[[object], bool]:
        """Tells of a value that the program has looked at whether it was found in what is lost."""
        known = self._graph.values.of(value)
        places = {loss.place, known.source if known is not None else None} - {None}

        def belongs(part: object) -> bool:
            tracker = self._graph.values.of(part)
            return tracker is not None and tracker.source is not None and not places.isdisjoint(tracker.source.bases())

        return belongs


def dying(value: object, belongs: Callable[[object], bool] = lambda _: False) -> Iterator[object]:
    """What dies when a value does, itself first: that to which nothing else refers, in Python at least.

    A tracer refers to what the program has looked at, so of that `belongs` has to tell.
    """
    todo, counted, kept = [value], Counter[int](), []
    while todo and len(counted) < _MOST:
        yield todo[-1]
        found = gc.get_referents(todo.pop())
        kept.append(found)
        for part in found:
            if issubclass(type(part), type) or part is value:
                continue
            counted[id(part)] += 1
            # One by each of those that die, one by each list of theirs here, one by the name, one by the call.
            if sys.getrefcount(part) == 2 * counted[id(part)] + 2 or (counted[id(part)] == 1 and belongs(part)):
                todo.append(part)


def _losses(graph: OutputGraph, effect: Effect) -> tuple[Source | None, list[Loss]]:
    """What an effect replaces, and where, if that is to be guarded."""
    match effect:
        case ContentsChanged(ListVariable() | DictVariable() | SetVariable() as container):
            items = container.items
            return container.source, items.losses() if isinstance(items, OutsideItems | OutsideTable) else []
        case GlobalSet(namespace, name):
            loss = Loss(name, global_source(namespace, name), _item(namespace, name))
            return Constant(namespace, "globals"), [loss]
        case CellSet(cell) if cell.cell is not None and cell.source is not None:
            loss = Loss(_CONTENTS, CellContents(cell.source), _stored(cell.cell, _CONTENTS))
            return cell.source, [loss]
        case AttrSet(obj, name) | AttrDeleted(obj, name) if obj.source is not None:
            return _lost_attribute(graph, obj, obj.source, name)
    return None, []


_CONTENTS = "cell_contents"


def _lost_attribute(
    graph: OutputGraph, obj: VariableTracker, source: Source, name: str
) -> tuple[Source | None, list[Loss]]:
    if isinstance(obj, TensorVariable) and name == "grad":
        real = graph.real(obj)
        # Every step of an optimizer drops the gradients of all parameters: that is not looked at before each call.
        return None, [] if real is None or not real.is_leaf else [Loss(name, None, (real.grad,))]
    value = graph.real(obj) if isinstance(obj, TensorVariable) else getattr(obj, "value", None)
    place = Attr(source, "__dict__")
    if issubclass(type(value), type):
        return place, [Loss(name, Attr(source, name), _item(vars(value), name))]
    if inspect.ismemberdescriptor(inspect.getattr_static(type(value), name, None)):
        return source, [Loss(name, Attr(source, name), _stored(value, name))]
    attributes = None if value is None else instance_dict(value)
    if type(attributes) is not dict:
        return None, []
    return place, [Loss(name, InstanceAttr(source, name), _item(attributes, name))]


def _item(values: Mapping[str, object], name: str) -> tuple[object, ...]:
    return (values[name],) if name in values else ()


def _stored(owner: object, slot: str) -> tuple[object, ...]:
    try:
        return (object.__getattribute__(owner, slot),)
    except (AttributeError, ValueError):
        return ()
