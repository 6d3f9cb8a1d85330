"""Owns the journal of side effects: what the traced program changed that others can see.

It changes no tracker and writes no code: handlers change trackers and report here; `tracer/capture/residual.py`
replays.
"""

from __future__ import annotations

import enum
import inspect
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minidynamo.errors import Diagnostic
from minidynamo.guards.source import Computed, Drawn, Source
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.objects import ClassVariable, NamespaceVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable


class Absence(enum.Enum):
    """Answers of a pending-attribute lookup that are not trackers."""

    UNKNOWN = "nothing was written while tracing"
    DELETED = "deleted while tracing"


UNKNOWN = Absence.UNKNOWN
DELETED = Absence.DELETED


@dataclass(frozen=True, eq=False)
class Effect:
    """One thing to replay after the graph."""


@dataclass(frozen=True, eq=False)
class ContentsChanged(Effect):
    """A list, deque, dict or set has new contents: those its tracker holds at the end."""

    container: VariableTracker


@dataclass(frozen=True, eq=False)
class AttrSet(Effect):
    """`obj.name` was set without user code running (object.__setattr__, or the class's own slot)."""

    obj: VariableTracker
    name: str
    value: VariableTracker


@dataclass(frozen=True, eq=False)
class AttrDeleted(Effect):
    """`obj.name` was deleted."""

    obj: VariableTracker
    name: str


@dataclass(frozen=True, eq=False)
class CounterAdvanced(Effect):
    """A number that a class of a library counts in went up. What the library has counted meanwhile stays counted."""

    obj: ClassVariable
    name: str
    by: int


@dataclass(frozen=True, eq=False)
class CellSet(Effect):
    """A closure cell was written; `value` is None when it was emptied."""

    cell: CellVariable
    value: VariableTracker | None


@dataclass(frozen=True, eq=False)
class GlobalSet(Effect):
    """A global of the module with this dictionary was written; `value` is None when it was deleted."""

    namespace: dict[str, Any]
    name: str
    value: VariableTracker | None


@dataclass(frozen=True, eq=False)
class Called(Effect):
    """A real call that was put off until after the graph, for its effect only (tensor.register_hook, ...)."""

    function: VariableTracker
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Advanced(Effect):
    """An iterator is moved; its tracker says where it is, so this is announced but not in the journal."""

    iterator: VariableTracker


@dataclass(frozen=True, eq=False)
class Written(Effect):
    """A tensor from outside an open subgraph was written to. The graph does that, so it is not in the journal."""

    tensor: VariableTracker


@dataclass(frozen=True, eq=False)
class Draw(Effect):
    """A random `number` was drawn from `generator`, as `call` says, or that was seeded. This is done before the graph
    runs, in program order, and is not in the journal. `late`: an operation of the graph came first that may raise."""

    number: Drawn | None
    generator: Source
    call: Computed
    late: bool


class StandIn(NamedTuple):
    """A container, or a token, that is not the very one which eager would have, and what the user is told where that
    could be seen: when it is changed, or is there when the graph has ended."""

    container: VariableTracker
    contents: list[object]
    diagnostic: Diagnostic

    @property
    def is_changed(self) -> bool:
        """Whether it holds something else by now."""
        return _contents(self.container) != self.contents


def _contents(container: VariableTracker) -> list[object]:
    """What a container holds now."""
    if isinstance(container, DictVariable):
        return [*container.items.items()]
    return [*container.items] if isinstance(container, ListVariable) else []


def _place_of(effect: Effect) -> Hashable | None:
    """What a write is to, if that does nothing but keep the value."""
    match effect:
        case AttrSet(obj, name) | AttrDeleted(obj, name) if _keeps(obj, name):
            return obj, name
        case CellSet(cell):
            return cell
        case GlobalSet(namespace, name):
            return id(namespace), name
    return None


def _keeps(obj: VariableTracker, name: str) -> bool:
    """Whether an attribute lies in a dictionary or a slot, and setting it changes nothing else."""
    if not isinstance(obj, ObjectVariable):
        return isinstance(obj, TensorVariable) and name == "grad"
    found = next((vars(base)[name] for base in obj.python_type.__mro__ if name in vars(base)), None)
    return not inspect.isgetsetdescriptor(found)


def _deletes(effect: Effect) -> bool:
    return isinstance(effect, AttrDeleted) or (isinstance(effect, CellSet | GlobalSet) and effect.value is None)


def _ignore(effect: Effect) -> None:
    pass


def _at_the_beginning() -> int:
    return 0


class SideEffects:
    """The journal of one trace, in program order, and the values that later reads must see.

    `on_effect` is told each effect before it is recorded, and may refuse it by raising. `fresh` are the places of what
    the call itself has made, the tuple and dict of spread arguments: nobody else has them. `times` says how many
    operations the graph had when something was written, which `time` tells.
    """

    on_effect: Callable[[Effect], None]
    time: Callable[[], int | None]

    def __init__(self, fresh: Collection[Source] = ()) -> None:
        self.fresh = fresh
        self.on_effect = _ignore
        self.time = _at_the_beginning
        self.times: dict[Effect, int] = {}
        self.journal: list[Effect] = []
        self.draws: list[Draw] = []
        self._attributes: dict[tuple[VariableTracker, str], VariableTracker | Absence] = {}
        self._class_attributes: dict[tuple[type, str], VariableTracker | Absence] = {}
        self._globals: dict[tuple[int, str], VariableTracker | Absence] = {}
        self._contexts: dict[VariableTracker, list[Called]] = {}
        self._changed: set[VariableTracker] = set()
        self.stand_ins: dict[VariableTracker, StandIn] = {}

    def _record(self, effect: Effect) -> None:
        self.on_effect(effect)
        self.times[effect] = self.time() or 0
        self.journal.append(effect)

    def draw(self, draw: Draw) -> None:
        """Report a random number that was drawn."""
        self.on_effect(draw)
        self.draws.append(draw)

    def contents_changed(self, container: VariableTracker) -> None:
        """Report that the contents of a container differ from those it had; asking twice is harmless.

        Changes of an object's `__dict__` are attribute writes, and reported as such.
        """
        effect = ContentsChanged(container)
        self.on_effect(effect)
        if container not in self._changed and not isinstance(container, NamespaceVariable):
            self._changed.add(container)
            self.journal.append(effect)

    def is_changed(self, container: VariableTracker) -> bool:
        """Whether `contents_changed` was reported for it."""
        return container in self._changed

    def stands_in(self, container: VariableTracker, diagnostic: Diagnostic) -> None:
        """Report a container, or a token, that is not the very one which eager would have."""
        self.stand_ins[container] = StandIn(container, _contents(container), diagnostic)

    def set_attr(self, obj: VariableTracker, name: str, value: VariableTracker) -> None:
        """Report `obj.name = value`."""
        self._attributes[obj, name] = value
        self._record(AttrSet(obj, name, value))

    def delete_attr(self, obj: VariableTracker, name: str) -> None:
        """Report `del obj.name`."""
        self._attributes[obj, name] = DELETED
        self._record(AttrDeleted(obj, name))

    def attr(self, obj: VariableTracker, name: str) -> VariableTracker | Absence:
        """What a read of the attribute must see: the last value written, DELETED, or UNKNOWN."""
        return self._attributes.get((obj, name), UNKNOWN)

    def has_gradient_to_assign(self, tensor: VariableTracker) -> bool:
        """Whether a tensor becomes the gradient of this one, or the other way around, behind the graph."""
        gradients = ((owner, value) for (owner, name), value in self._attributes.items() if name == "grad")
        return any(isinstance(value, TensorVariable) and tensor in (owner, value) for owner, value in gradients)

    def attribute_history(self, obj: VariableTracker) -> Iterator[tuple[str, bool]]:
        """Each write to an attribute of `obj`, in order: its name, and whether it was set or deleted."""
        for effect in self.journal:
            if isinstance(effect, AttrSet | AttrDeleted) and effect.obj is obj:
                yield effect.name, isinstance(effect, AttrSet)

    def written_attrs(self, obj: VariableTracker) -> dict[str, VariableTracker | Absence]:
        """All attributes of `obj` written or deleted so far, by name."""
        return {name: value for (owner, name), value in self._attributes.items() if owner is obj}

    def set_class_attr(self, cls: ClassVariable, name: str, value: VariableTracker | None) -> None:
        """Report `cls.name = value` (or, with None, its deletion) on a class from outside."""
        self._class_attributes[cls.value, name] = DELETED if value is None else value
        self._record(AttrDeleted(cls, name) if value is None else AttrSet(cls, name, value))

    def advance_counter(self, cls: ClassVariable, name: str, value: VariableTracker, by: int) -> None:
        """Report that a class of a library counts on, here to `value`."""
        self._class_attributes[cls.value, name] = value
        self._record(CounterAdvanced(cls, name, by))

    def class_attr(self, cls: type, name: str) -> VariableTracker | Absence:
        """What was written to the class itself, not to its bases."""
        return self._class_attributes.get((cls, name), UNKNOWN)

    @property
    def writes_classes(self) -> bool:
        """Whether any attribute of a class was written."""
        return bool(self._class_attributes)

    def set_global(self, namespace: dict[str, Any], name: str, value: VariableTracker | None) -> None:
        """Report a write (or, with None, a deletion) of a global."""
        self._globals[id(namespace), name] = DELETED if value is None else value
        self._record(GlobalSet(namespace, name, value))

    def read_global(self, namespace: dict[str, Any], name: str) -> VariableTracker | Absence:
        """What a read of the global must see."""
        return self._globals.get((id(namespace), name), UNKNOWN)

    def writes_globals(self, namespace: dict[str, Any]) -> bool:
        """Whether any global of a module was written."""
        return any(owner == id(namespace) for owner, _ in self._globals)

    def set_context(self, variable: VariableTracker, setter: VariableTracker, value: VariableTracker) -> Called:
        """Report `variable.set(value)` of a context variable, a call of `setter`; the effect stands for its token."""
        effect = Called(setter, (variable, value))
        self._record(effect)
        self._contexts.setdefault(variable, []).append(effect)
        return effect

    def reset_context(self, variable: VariableTracker, token: object) -> None:
        """Report that a context variable is as it was before `token`: what was set from there on happens to nobody."""
        calls = self._contexts[variable]
        undone = list(itertools.dropwhile(lambda call: call is not token, calls))
        self.on_effect(undone[0])
        del calls[-len(undone) :]
        self.journal = [effect for effect in self.journal if effect not in undone]

    def context_calls(self, variable: VariableTracker) -> Sequence[Called]:
        """The calls that have set a context variable and count still, the last one at the end."""
        return self._contexts.get(variable, ())

    def set_cell(self, cell: CellVariable, value: VariableTracker | None) -> None:
        """Report a write to a closure cell; the caller also stores it in the tracker."""
        self._record(CellSet(cell, value))

    def is_last(self, effect: Effect) -> bool:
        """Whether what an effect in the journal has written is what the program leaves there."""
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

    def lasting(self) -> list[Effect]:
        """The journal with one write to each place: where the first one stands, since the order of keys can be seen,
        with the value of the last one. Calls look at what is there by then, and what is deleted gets a new place."""
        found: list[Effect] = []
        first: dict[Hashable, int] = {}
        for effect in self.journal:
            place = _place_of(effect)
            if isinstance(effect, Called):
                first.clear()
            if place is not None and _deletes(effect):
                first.pop(place, None)
            elif place in first:
                found[first[place]] = effect
                continue
            elif place is not None:
                first[place] = len(found)
            found.append(effect)
        return found

    def is_written(self, cell: CellVariable) -> bool:
        """Whether `set_cell` was reported for it."""
        return any(isinstance(effect, CellSet) and effect.cell is cell for effect in self.journal)

    def forget(self) -> None:
        """Let go of everything when the residual program is printed: it refers to the user's objects."""
        tables = (self.journal, self.draws, self._attributes, self._class_attributes, self._globals, self._contexts)
        for table in (*tables, self._changed, self.times):
            table.clear()

    def call_later(self, function: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> None:
        """Report a call to make after the graph has run, in journal order."""
        self._record(Called(function, args, kwargs))
