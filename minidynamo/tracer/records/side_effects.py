"""Owns the journal of side effects: changes by the traced program that code outside the frame can see.

Changes no tracker and writes no code: handlers change trackers and report here; `tracer/capture/residual.py` replays.
"""

from __future__ import annotations

import enum
import inspect
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from minidynamo.core.records import record
from minidynamo.errors import Diagnostic
from minidynamo.guards.source import Computed, Constant, Drawn, Source
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.objects import ClassVariable, NamespaceVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable


class Absence(enum.Enum):
    """Results of a pending-attribute lookup that are not trackers."""

    UNKNOWN = "nothing was written while tracing"
    DELETED = "deleted while tracing"


UNKNOWN = Absence.UNKNOWN
DELETED = Absence.DELETED


@record(frozen=True, eq=False)
class Effect:
    """A side effect to replay after the graph."""


@record(frozen=True, eq=False)
class ContentsChanged(Effect):
    """A list, deque, dict or set has new contents: the contents of its tracker at the end."""

    container: VariableTracker


@record(frozen=True, eq=False)
class AttrSet(Effect):
    """`obj.name` was set without running user code (by object.__setattr__, or by the class's own slot)."""

    obj: VariableTracker
    name: str
    value: VariableTracker


@record(frozen=True, eq=False)
class AttrDeleted(Effect):
    """`obj.name` was deleted."""

    obj: VariableTracker
    name: str


@record(frozen=True, eq=False)
class CounterAdvanced(Effect):
    """A counter of a library class was increased. Counts by the library in the meantime are kept."""

    obj: ClassVariable
    name: str
    by: int


@record(frozen=True, eq=False)
class CellSet(Effect):
    """A closure cell was written; `value` is None when the cell was emptied."""

    cell: CellVariable
    value: VariableTracker | None


@record(frozen=True, eq=False)
class GlobalSet(Effect):
    """A global of the module with this dictionary was written; `value` is None when the global was deleted."""

    namespace: dict[str, Any]
    name: str
    value: VariableTracker | None


@record(frozen=True, eq=False)
class Called(Effect):
    """A real call that was deferred until after the graph, for its effect only (tensor.register_hook, ...)."""

    function: VariableTracker
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)


@record(frozen=True, eq=False)
class Advanced(Effect):
    """An iterator is moved. The tracker has the new position: the journal does not record this effect."""

    iterator: VariableTracker


@record(frozen=True, eq=False)
class Written(Effect):
    """A tensor from outside an open subgraph was written to. The graph does the write: the journal does not record
    it."""

    tensor: VariableTracker


@record(frozen=True, eq=False)
class Draw(Effect):
    """A random number was drawn, or a generator was seeded. Both happen before the graph, in program order, and are not
    in the journal."""

    #: the drawn number; None if the generator was seeded
    number: Drawn | None
    #: source of the generator
    generator: Source
    #: the call that draws or seeds
    call: Computed
    #: whether eager might not reach the call: an operation of the graph that may raise came first
    may_be_skipped: bool


class StandIn(NamedTuple):
    """A container or token that replaces eager's object, and the message if the program could see the difference: when
    the replacement is changed or outlives the graph."""

    #: the replacement
    container: VariableTracker
    #: the contents of the replacement when it was created
    contents: list[object]
    #: the message to the user
    diagnostic: Diagnostic

    @property
    def is_changed(self) -> bool:
        """True if the contents have changed since."""
        return _contents(self.container) != self.contents


@record(frozen=True, eq=False)
class NewClass:
    """A class that the program creates in each call. The trace has one of its own."""

    #: the class of the trace
    cls: type
    #: the function that creates the class
    make: Callable[..., Any]
    #: the arguments of `make`
    args: tuple[VariableTracker, ...]
    #: the keyword arguments of `make`
    kwargs: dict[str, VariableTracker]


def _contents(container: VariableTracker) -> list[object]:
    """Returns the present contents of a container."""
    if isinstance(container, DictVariable):
        return [*container.items.items()]
    return [*container.items] if isinstance(container, ListVariable) else []


def _location_of(effect: Effect) -> Hashable | None:
    """Returns the location that an effect writes to, if the write does nothing but store the value."""
    match effect:
        case AttrSet(obj, name) | AttrDeleted(obj, name) if _is_stored(obj, name):
            return obj, name
        case CellSet(cell):
            return cell
        case GlobalSet(namespace, name):
            return id(namespace), name
    return None


def _is_stored(obj: VariableTracker, name: str) -> bool:
    """Returns whether an attribute is stored in a dictionary or a slot, and setting it changes nothing else."""
    if not isinstance(obj, ObjectVariable):
        return isinstance(obj, TensorVariable) and name == "grad"
    found = next((vars(base)[name] for base in obj.python_type.__mro__ if name in vars(base)), None)
    return not inspect.isgetsetdescriptor(found)


def _deletes(effect: Effect) -> bool:
    return isinstance(effect, AttrDeleted) or (isinstance(effect, CellSet | GlobalSet) and effect.value is None)


def _ignore(effect: Effect) -> None:
    pass


def _read(_: VariableTracker | None) -> None:
    pass


class SideEffects:
    """The journal of one trace, in program order, and the values that later reads must see."""

    #: called with each effect before it is recorded; may raise to refuse the effect
    on_effect: Callable[[Effect], None]
    #: called for each read of an attribute, with its object, or of a global, with None, that the journal has written
    on_read: Callable[[VariableTracker | None], None]

    def __init__(self, fresh: Collection[Source] = ()) -> None:
        #: sources of the tuple and dict of starred arguments: created by the call itself, so no other code has
        #: references
        self.fresh = fresh
        self.on_effect = _ignore
        self.on_read = _read
        self.journal: list[Effect] = []
        self.draws: list[Draw] = []
        self._attributes: dict[tuple[VariableTracker, str], VariableTracker | Absence] = {}
        self._class_attributes: dict[tuple[type, str], VariableTracker | Absence] = {}
        self._globals: dict[tuple[int, str], VariableTracker | Absence] = {}
        self._contexts: dict[VariableTracker, list[Called]] = {}
        self._changed: set[VariableTracker] = set()
        self.stand_ins: dict[VariableTracker, StandIn] = {}
        #: the classes created by the program, by the id of the trace's own class
        self.new_classes: dict[int, NewClass] = {}
        #: for each of them the stand-in for everything that may not leave the trace
        self._bound_to_trace: dict[int, VariableTracker] = {}

    def _record(self, effect: Effect) -> None:
        self.on_effect(effect)
        self.journal.append(effect)

    def draw(self, draw: Draw) -> None:
        """Records a random number that was drawn."""
        self.on_effect(draw)
        self.draws.append(draw)

    def contents_changed(self, container: VariableTracker) -> None:
        """Records that the contents of a container have changed; may be called repeatedly.

        Changes of an object's `__dict__` are recorded as attribute writes instead.
        """
        effect = ContentsChanged(container)
        self.on_effect(effect)
        if container not in self._changed and not isinstance(container, NamespaceVariable):
            self._changed.add(container)
            self.journal.append(effect)

    def is_changed(self, container: VariableTracker) -> bool:
        """Returns whether `contents_changed` was called for the container."""
        return container in self._changed

    def record_stand_in(self, container: VariableTracker, diagnostic: Diagnostic) -> None:
        """Records a container or token that replaces eager's object."""
        self.stand_ins[container] = StandIn(container, _contents(container), diagnostic)

    def new_class(self, new: NewClass, diagnostic: Diagnostic) -> None:
        """Records a class created by the program; `diagnostic` says why a part of the class cannot leave the trace."""
        self.new_classes[id(new.cls)] = new
        self._bound_to_trace[id(new.cls)] = stand_in = ClassVariable(new.cls)
        self.record_stand_in(stand_in, diagnostic)

    def bound_to_trace(self, found: Iterable[VariableTracker], effects: Iterable[Effect]) -> Iterator[VariableTracker]:
        """Yields the stand-ins of the new classes of which `found` has a method, or which `effects` change."""
        if not self.new_classes:
            return
        changed = [effect.obj for effect in effects if isinstance(effect, AttrSet | AttrDeleted)]
        for value in (*(v for v in found if not isinstance(v, ClassVariable)), *changed):
            source = value.source
            root = source.root() if source is not None else None
            if isinstance(root, Constant) and id(root.value) in self.new_classes:
                yield self._bound_to_trace[id(root.value)]

    def set_attr(self, obj: VariableTracker, name: str, value: VariableTracker) -> None:
        """Records `obj.name = value`."""
        self._attributes[obj, name] = value
        self._record(AttrSet(obj, name, value))

    def delete_attr(self, obj: VariableTracker, name: str) -> None:
        """Records `del obj.name`."""
        self._attributes[obj, name] = DELETED
        self._record(AttrDeleted(obj, name))

    def attr(self, obj: VariableTracker, name: str) -> VariableTracker | Absence:
        """Returns the attribute that a read must see: the last value written, DELETED, or UNKNOWN."""
        found = self._attributes.get((obj, name), UNKNOWN)
        if found is not UNKNOWN:
            self.on_read(obj)
        return found

    def has_gradient_to_assign(self, tensor: VariableTracker) -> bool:
        """Returns whether this tensor becomes the gradient of a tensor, or gets a gradient, after the graph."""
        gradients = ((owner, value) for (owner, name), value in self._attributes.items() if name == "grad")
        return any(isinstance(value, TensorVariable) and tensor in (owner, value) for owner, value in gradients)

    def attribute_history(self, obj: VariableTracker) -> Iterator[tuple[str, bool]]:
        """Yields each write to an attribute of `obj`, in order: the name, and whether it was set (else deleted)."""
        for effect in self.journal:
            if isinstance(effect, AttrSet | AttrDeleted) and effect.obj is obj:
                yield effect.name, isinstance(effect, AttrSet)

    def written_attributes(self, obj: VariableTracker) -> dict[str, VariableTracker | Absence]:
        """Returns all attributes of `obj` written or deleted so far, by name."""
        return {name: value for (owner, name), value in self._attributes.items() if owner is obj}

    def set_class_attr(self, cls: ClassVariable, name: str, value: VariableTracker | None) -> None:
        """Records `cls.name = value` (or, with None, a deletion) on an external class."""
        self._class_attributes[cls.value, name] = DELETED if value is None else value
        self._record(AttrDeleted(cls, name) if value is None else AttrSet(cls, name, value))

    def advance_counter(self, cls: ClassVariable, name: str, value: VariableTracker, by: int) -> None:
        """Records an increase of a counter of a library class to `value`."""
        self._class_attributes[cls.value, name] = value
        self._record(CounterAdvanced(cls, name, by))

    def class_attr(self, cls: type, name: str) -> VariableTracker | Absence:
        """Returns the value written to the class itself, not to its bases."""
        found = self._class_attributes.get((cls, name), UNKNOWN)
        if found is not UNKNOWN:
            self.on_read(None)
        return found

    @property
    def writes_classes(self) -> bool:
        """True if any attribute of a class was written."""
        return bool(self._class_attributes)

    def set_global(self, namespace: dict[str, Any], name: str, value: VariableTracker | None) -> None:
        """Records a write (or, with None, a deletion) of a global."""
        self._globals[id(namespace), name] = DELETED if value is None else value
        self._record(GlobalSet(namespace, name, value))

    def read_global(self, namespace: dict[str, Any], name: str) -> VariableTracker | Absence:
        """Returns the global that a read must see."""
        found = self._globals.get((id(namespace), name), UNKNOWN)
        if found is not UNKNOWN:
            self.on_read(None)
        return found

    def writes_globals(self, namespace: dict[str, Any]) -> bool:
        """Returns whether any global of a module was written."""
        return any(owner == id(namespace) for owner, _ in self._globals)

    def set_context(self, variable: VariableTracker, setter: VariableTracker, value: VariableTracker) -> Called:
        """Records `variable.set(value)` of a context variable, a call of `setter`; the returned effect represents the
        token."""
        effect = Called(setter, (variable, value))
        self._record(effect)
        self._contexts.setdefault(variable, []).append(effect)
        return effect

    def reset_context(self, variable: VariableTracker, token: object) -> None:
        """Records that a context variable was reset to the value before `token`: later `set` calls are dropped from the
        journal."""
        calls = self._contexts[variable]
        undone = list(itertools.dropwhile(lambda call: call is not token, calls))
        self.on_effect(undone[0])
        del calls[-len(undone) :]
        self.journal = [effect for effect in self.journal if effect not in undone]

    def context_calls(self, variable: VariableTracker) -> Sequence[Called]:
        """Returns the `set` calls of a context variable that were not reset, the latest last."""
        return self._contexts.get(variable, ())

    def set_cell(self, cell: CellVariable, value: VariableTracker | None) -> None:
        """Records a write to a closure cell; the caller also stores the value in the tracker."""
        self._record(CellSet(cell, value))

    def is_last(self, effect: Effect) -> bool:
        """Returns whether the value written by an effect in the journal is the final value."""
        match effect:
            case AttrSet(ClassVariable(value=cls), name, value):
                return self.class_attr(cls, name) is value
            case AttrSet(obj, name, value):
                return self.attr(obj, name) is value
            case GlobalSet(namespace, name, value):
                return self.read_global(namespace, name) is value
            case CellSet(cell, value):
                return cell.contents is value
        return isinstance(effect, ContentsChanged)

    def final_writes(self) -> list[Effect]:
        """Returns the journal with one write per location: at the position of the first write, because the order of
        keys is visible, and with the value of the last write. A deferred call reads the values up to its position, and
        a deleted key gets a new position."""
        writes: list[Effect] = []
        first: dict[Hashable, int] = {}
        for effect in self.journal:
            location = _location_of(effect)
            if isinstance(effect, Called):
                first.clear()
            if location is not None and _deletes(effect):
                first.pop(location, None)
            elif location in first:
                writes[first[location]] = effect
                continue
            elif location is not None:
                first[location] = len(writes)
            writes.append(effect)
        return writes

    def is_written(self, cell: CellVariable) -> bool:
        """Returns whether `set_cell` was called for the cell."""
        return any(isinstance(effect, CellSet) and effect.cell is cell for effect in self.journal)

    def forget(self) -> None:
        """Drops everything after the residual program is printed: the journal refers to the user's objects."""
        tables = (self.journal, self.draws, self._attributes, self._class_attributes, self._globals, self._contexts)
        for table in (*tables, self._changed):
            table.clear()

    def record_call(self, function: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> None:
        """Records a call to make after the graph has run, in journal order."""
        self._record(Called(function, args, kwargs))
