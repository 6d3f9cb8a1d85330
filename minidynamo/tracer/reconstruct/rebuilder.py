"""Owns the text that rebuilds values after a graph has run: names for known values, and builders for new values.

The choice of values and the time of effects are not here (`tracer/capture/residual.py`), nor are the builders of each
kind of value (the other files of this folder). An external object is never rebuilt, only named; an object with several
references is built once."""

from __future__ import annotations

import builtins
import math
import types
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from minidynamo.core.names import Namespace, name_of
from minidynamo.errors import Diagnostic, InternalError
from minidynamo.guards.source import Constant, Referent
from minidynamo.tracer.reachable import is_external, parts
from minidynamo.tracer.reconstruct.builders import BUILDERS, FILLERS, KEEPERS, Build, hint_of
from minidynamo.tracer.records.side_effects import NewClass, SideEffects
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, CellVariable, FunctionVariable
from minidynamo.variables.containers import SetVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, PythonModuleVariable

# Trackers of objects that exist outside the frame; these are always named.
_ALWAYS_NAMED = (FunctionVariable, BuiltinVariable, ClassVariable, PythonModuleVariable)
# Classes whose own names ("cell", "function") are less clear than their names in `types`.
_TYPE_NAMES = {types.CellType: "CellType", types.FunctionType: "FunctionType", types.MethodType: "MethodType"}


class Rebuilder:
    """Prints the statements that rebuild values.

    `known` has names of the graph's outputs and of values loaded before; `needed` has the values to rebuild."""

    def __init__(
        self,
        names: Namespace,
        side_effects: SideEffects,
        known: Mapping[VariableTracker, str],
        needed: Iterable[VariableTracker],
    ) -> None:
        self.names = names
        self.side_effects = side_effects
        #: the statements so far
        self.lines: list[str] = []
        #: statements that run after all effects
        self.final_lines: list[str] = []
        #: names bound by the statements
        self.bound: list[str] = []
        self._known = dict(known)
        self._uses = Counter(needed)
        self._cyclic: set[VariableTracker] = set()
        self._unfilled: list[tuple[VariableTracker, str]] = []
        self._kept: dict[VariableTracker, tuple[VariableTracker, str]] = {}
        #: external containers that have their new contents already
        self.refilled: set[VariableTracker] = set()
        self._depth = 0
        self._new_classes: dict[int, str] = {}
        self._survey()

    def _survey(self) -> None:
        """Counts the references to each value, and finds mutable cyclic values."""
        todo = list(self._uses)
        seen: set[VariableTracker] = set()
        graph: dict[VariableTracker, list[VariableTracker]] = {}
        while todo:
            variable = todo.pop()
            if variable in seen or variable in self._known or is_external(variable):
                continue
            seen.add(variable)
            graph[variable] = list(parts(variable, self.side_effects))
            self._uses.update(graph[variable])
            todo += graph[variable]
        for variable in graph:
            if type(variable) in FILLERS and not _is_frozenset(variable) and _contains_itself(variable, graph):
                self._cyclic.add(variable)
            for name, part in KEEPERS[type(variable)](variable).items() if type(variable) in KEEPERS else ():
                if self._uses[part] > 1 and part in graph:
                    self._kept[part] = variable, name
                    self._uses[variable] += 1

    def value(self, variable: VariableTracker) -> str:
        """Returns an expression for the value: a name, a literal, or its construction if used only here."""
        if variable in self._known:
            return self._known[variable]
        if isinstance(variable, ConstantVariable) and type(variable) not in BUILDERS:
            return self.literal(variable.value)
        if isinstance(variable, TupleVariable) and variable.real is not None:
            return self.literal(variable.real)
        if isinstance(variable.source, Referent):
            return variable.source.expression(self.names)
        if isinstance(variable.source, Constant):
            return self.constant(variable.source.value, variable.source.name)
        if isinstance(variable, CellVariable) and variable.cell is not None:
            return self.names.constant(variable.cell, "cell")
        if variable.source is None and isinstance(variable, _ALWAYS_NAMED):
            return self.constant(variable.value)
        if variable in self._kept:
            keeper, name = self._kept[variable]
            return f"{self.value(keeper)}.{name}"
        build = BUILDERS.get(type(variable))
        if build is None or is_external(variable):
            raise cannot_rebuild(variable)
        self._depth += 1
        text = self._build_cyclic(variable) if variable in self._cyclic else self._build(variable, build)
        self._depth -= 1
        self._fill_pending()
        return text

    def _build(self, variable: VariableTracker, build: Build) -> str:
        text = build(self, variable)
        if variable in self._known:  # an object that was filled meanwhile refers to the value
            return self._known[variable]
        if self._uses[variable] > 1 and not text.isidentifier():
            text = self.assign(hint_of(variable), text)
        if text.isidentifier():
            self._known[variable] = text
        return text

    def _build_cyclic(self, variable: VariableTracker) -> str:
        """Makes the value without contents, to be filled after all surrounding values exist."""
        empty, _ = FILLERS[type(variable)]
        name = self.assign(hint_of(variable), empty(self, variable))
        self._known[variable] = name
        self._unfilled.append((variable, name))
        return name

    def _fill_pending(self) -> None:
        while self._depth == 0 and self._unfilled:
            self._fill(self._unfilled[0])

    def _fill(self, unfilled: tuple[VariableTracker, str]) -> None:
        self._unfilled.remove(unfilled)
        self._depth += 1
        variable, name = unfilled
        _, fill = FILLERS[type(variable)]
        fill(self, variable, name)
        self._depth -= 1

    def hashed(self, variable: VariableTracker) -> str:
        """Returns an expression for a key or an element of a set, which Python hashes at once.

        If a class of the user computes the hash, new objects get their attributes before."""
        text = self.value(variable)
        while _has_own_hash(variable) and (objects := [m for m in self._unfilled if isinstance(m[0], ObjectVariable)]):
            self._fill(objects[0])
        return text

    def values(self, variables: Iterable[VariableTracker]) -> str:
        """Returns comma-separated expressions."""
        return ", ".join([self.value(variable) for variable in variables])

    def assign(self, hint: str, text: str) -> str:
        """Binds the value of `text` to a new name, and returns the name."""
        name = self.names.fresh(hint)
        self.bound.append(name)
        self.lines.append(f"{name} = {text}")
        return name

    def literal(self, value: object) -> str:
        """Returns Python text for a constant: a literal if possible, else a name."""
        spelled = spelling(value)
        if spelled is not None:
            return spelled
        if isinstance(value, torch.dtype):
            return self.constant(value, str(value).removeprefix("torch."))
        return self.constant(value)

    def constant(self, value: object, hint: str = "") -> str:
        """Returns a name bound to an object that exists outside the frame.

        A path to the object (`torch.sin`) is not safe: a store of this program may have replaced the object. A builtin
        keeps its own name unless the program writes to builtins. A class that the program creates is created anew."""
        new = self.side_effects.new_classes.get(id(value))
        if new is not None:
            return self._new_class(new)
        if not hint:
            hint = _TYPE_NAMES.get(value, name_of(value)) if isinstance(value, type) else name_of(value)
        if self.side_effects.writes_globals(vars(builtins)):
            hint = f"own_{hint}"
        return self.names.constant(value, hint)

    def _new_class(self, new: NewClass) -> str:
        """Returns the name of a class that the program creates in each call."""
        if id(new.cls) not in self._new_classes:
            named = [f"{name}={self.value(value)}" for name, value in new.kwargs.items()]
            call = f"{self.constant(new.make)}({', '.join([*map(self.value, new.args), *named])})"
            self._new_classes[id(new.cls)] = self.assign(new.cls.__name__, call)
        return self._new_classes[id(new.cls)]


_LONGEST_INT = 10_000  # bits; Python refuses to print longer ints


def spelling(value: object) -> str | None:
    """Returns a literal that equals `value`; None if there is none."""
    if value is None or type(value) in (bool, str, bytes):
        return repr(value)
    if (type(value) is int and value.bit_length() < _LONGEST_INT) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    if type(value) is not tuple:
        return None
    parts = [spelling(part) for part in value]
    return None if None in parts else f"({''.join(f'{part}, ' for part in parts)})"


def _is_frozenset(variable: VariableTracker) -> bool:
    return isinstance(variable, SetVariable) and variable.cls is frozenset


def _has_own_hash(variable: VariableTracker) -> bool:
    """Returns whether the hash of a new value may depend on the attributes of new objects."""
    if variable.source is not None:
        return False
    if isinstance(variable, TupleVariable):
        return any(map(_has_own_hash, variable.items.lazy()))
    if isinstance(variable, SetVariable):
        return _is_frozenset(variable) and any(_has_own_hash(key.variable) for key in variable.items)
    if not isinstance(variable, ObjectVariable):
        return False
    own_hash: object = variable.cls.__hash__
    return own_hash is not object.__hash__


def _contains_itself(variable: VariableTracker, graph: Mapping[VariableTracker, list[VariableTracker]]) -> bool:
    todo = list(graph[variable])
    seen: set[VariableTracker] = set()
    while todo:
        part = todo.pop()
        if part is variable:
            return True
        if part not in seen:
            seen.add(part)
            todo += graph.get(part, ())
    return False


def cannot_rebuild(variable: VariableTracker) -> InternalError:
    what = f"a value of class {variable.python_type.__name__} ({type(variable).__name__}) cannot be rebuilt"
    why = "The tracer must break the graph before such a value is needed after it."
    return InternalError(Diagnostic("MD260", what, why=why, fix="Please report this with the function."))


def tuple_literal(texts: Iterable[str]) -> str:
    """Returns text for a tuple of these expressions."""
    texts = list(texts)
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
