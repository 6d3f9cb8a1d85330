"""Owns `obj.__dict__`: the attributes of an instance or of a class, and the globals of a module, as a dict.

Stores no values. An item is read from the storage of the attribute, and a write is an attribute write in the journal,
so both kinds of access agree. Unread items are not guarded.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Item, Source, global_source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.side_effects import DELETED, UNKNOWN, Absence
from minidynamo.tracer.trace_rules import is_library_value
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, Entries
from minidynamo.variables.objects import ObjectVariable


class NamespaceItems(Entries):
    """The contents of a dict `real`, read from the storage of the attributes. Names in `slots` are not keys."""

    tx: Tracer
    real: dict[str, Any]
    slots: frozenset[str] = frozenset()

    @property
    def source(self) -> Source | None:
        """The source of the dict; None for a dict created during tracing."""
        raise NotImplementedError

    def written(self, name: str) -> VariableTracker | Absence:
        """Returns the value that the program has written under a name, DELETED, or UNKNOWN."""
        raise NotImplementedError

    def stored(self, name: str) -> VariableTracker:
        """Returns the value on entry under a name, maybe lazy."""
        raise NotImplementedError

    def __contains__(self, key: object) -> bool:
        name = key.token if isinstance(key, DictKey) else None
        if not isinstance(name, str) or name in self.slots:
            return False
        written = self.written(name)
        if written is not UNKNOWN:
            return written is not DELETED
        kind = GuardKind.HAS_KEY if name in self.real else GuardKind.MISSING_KEY
        self.tx.guard(self.source, kind, name)
        return name in self.real

    def name_at(self, key: DictKey) -> str:
        """Returns the name that is a key. Raises KeyError for an absent key."""
        if key not in self:
            raise KeyError(key.token)
        assert isinstance(key.token, str)
        return key.token

    def lazy_at(self, key: DictKey) -> VariableTracker:
        name = self.name_at(key)
        written = self.written(name)
        return written.realized() if isinstance(written, VariableTracker) else self.stored(name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class InstanceItems(NamespaceItems):
    """The contents of the `__dict__` of `obj`; `real` is the real dict, or None for an object created during
    tracing."""

    def __init__(self, tx: Tracer, obj: ObjectVariable, real: dict[str, object] | None, slots: frozenset[str]) -> None:
        self.tx = tx
        self.obj = obj
        self.real = real or {}
        self.slots = slots

    @property
    def source(self) -> Source | None:
        return Attr(self.obj.source, "__dict__") if self.obj.source is not None else None

    def written(self, name: str) -> VariableTracker | Absence:
        return self.tx.side_effects.attr(self.obj, name)

    def stored(self, name: str) -> VariableTracker:
        if self.obj.source is None:
            return self.tx.wrap(self.real[name], None)
        return self.tx.lazy(self.real[name], InstanceAttr(self.obj.source, name))

    def _names(self) -> list[str]:
        names = dict.fromkeys(self.real)
        for name, is_set in self.tx.side_effects.attribute_history(self.obj):
            if is_set and name not in self.slots:
                names.setdefault(name)
            else:
                names.pop(name, None)
        return list(names)

    def __iter__(self) -> Iterator[DictKey]:
        self.tx.guard(self.source, GuardKind.DICT_KEYS, tuple(self.real))
        return iter([key_of(ConstantVariable(name)) for name in self._names()])

    def __setitem__(self, key: DictKey, value: VariableTracker) -> None:
        if not isinstance(key.token, str):
            self.tx.break_graph("MD206", "an attribute gets a name that is not text")
        if key.token in self.slots:  # the name of a slot and a key of the dict at the same time
            self.tx.break_graph("MD206", f"`__dict__` gets the key `{key.token}`, which is the name of a slot")
        self.tx.side_effects.set_attr(self.obj, key.token, value)

    def __delitem__(self, key: DictKey) -> None:
        self.tx.side_effects.delete_attr(self.obj, self.name_at(key))


class ClassItems(Entries):
    """The contents of the dict of a class. The names are guarded where the class is first reached."""

    def __init__(self, tx: Tracer, cls: type) -> None:
        self.tx = tx
        self.cls = cls

    def _real(self) -> Mapping[str, object]:
        """Returns the real dict of the class, without the writes of the program itself."""
        if self.tx.side_effects.writes_classes:
            what = f"the dict of the class {self.cls.__name__} is read after a write to a class"
            self.tx.break_graph("MD206", what, why="Writes to a class are done after the graph.")
        return vars(self.cls)

    def __iter__(self) -> Iterator[DictKey]:
        return iter([key_of(ConstantVariable(name)) for name in self._real()])

    def __len__(self) -> int:
        return len(self._real())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, DictKey) and key.token in self._real()

    def lazy_at(self, key: DictKey) -> VariableTracker:
        namespace = Attr(Constant(self.cls, self.cls.__name__), "__dict__")
        assert isinstance(key.token, str)
        return self.tx.wrap(self._real()[key.token], Item(namespace, key.token))

    def __setitem__(self, key: DictKey, value: VariableTracker) -> None:
        raise TypeError("the dict of a class is read-only")

    def __delitem__(self, key: DictKey) -> None:
        raise TypeError("the dict of a class is read-only")


class ModuleItems(NamespaceItems):
    """The globals of a module. `trusted`: the module belongs to a library, whose functions and classes are
    constants."""

    def __init__(self, tx: Tracer, namespace: dict[str, Any], trusted: bool) -> None:
        self.tx = tx
        self.real = namespace
        self.trusted = trusted

    @property
    def source(self) -> Source:
        return Constant(self.real, "G", hidden=True)

    def written(self, name: str) -> VariableTracker | Absence:
        return self.tx.side_effects.read_global(self.real, name)

    def stored(self, name: str) -> VariableTracker:
        value = self.real[name]
        if self.trusted and is_library_value(value):
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType):  # programs may patch libraries
                self.tx.guard(global_source(self.real, name), GuardKind.IDENTITY, value)
            return self.tx.wrap(value, Constant(value, name))
        return self.tx.lazy(value, global_source(self.real, name))

    def __iter__(self) -> Iterator[DictKey]:
        if self.tx.side_effects.writes_globals(self.real):
            why = "Writes to a module are done after the graph."
            self.tx.break_graph("MD206", "all globals are read after a write to a global", why=why)
        names = (*self.real,)
        self.tx.guard(self.source, GuardKind.DICT_KEYS, names)
        return iter([key_of(ConstantVariable(name)) for name in names])

    def __setitem__(self, key: DictKey, value: VariableTracker) -> None:
        name = key.token
        if not isinstance(name, str):
            self.tx.break_graph("MD206", "a global gets a name that is not text")
        self.tx.side_effects.set_global(self.real, name, value)

    def __delitem__(self, key: DictKey) -> None:
        self.tx.side_effects.set_global(self.real, self.name_at(key), None)
