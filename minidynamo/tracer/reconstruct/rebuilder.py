"""Owns the text that rebuilds values after a graph has run: names what is known, and asks the tables for the rest.

It does not decide which values are needed or when effects are replayed; `tracer/capture/residual.py` does. What a kind
of value is built of is said in the files beside this one. What lives outside is never rebuilt, only named; an object
that is referred to several times is built once.
"""

from __future__ import annotations

import builtins
import types
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from minidynamo.core.names import Namespace, name_of
from minidynamo.errors import Diagnostic, InternalError
from minidynamo.guards.source import Constant, Referent
from minidynamo.tracer.reachable import is_outside, parts
from minidynamo.tracer.reconstruct.builders import BUILDERS, FILLERS, KEEPERS, Build, hint_of
from minidynamo.tracer.reconstruct.constants import Pins, is_new
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, CellVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, PythonModuleVariable

# Trackers of objects that live on, which are always named.
_LIVING = (FunctionVariable, BuiltinVariable, ClassVariable, PythonModuleVariable)
# Classes whose own names ("cell", "function") say less than those under which `types` has them.
_TYPE_NAMES = {types.CellType: "CellType", types.FunctionType: "FunctionType", types.MethodType: "MethodType"}


class Rebuilder:
    """Writes the statements that rebuild values. `known` names the graph's outputs and what was loaded before.

    `lines` are the statements so far; `late` those that must come after all effects. `refilled` are the containers
    from outside that have their new contents already. `pins` has the objects that literals in the statements stand for.
    """

    def __init__(
        self,
        names: Namespace,
        side_effects: SideEffects,
        known: Mapping[VariableTracker, str],
        needed: Iterable[VariableTracker],
    ) -> None:
        self.names = names
        self.side_effects = side_effects
        self.lines: list[str] = []
        self.late: list[str] = []
        self.bound: list[str] = []
        self.pins = Pins()
        self._known = dict(known)
        self._trackers = {id(v.here): v for v in known if isinstance(v, ConstantVariable)}
        self._uses = Counter(map(self._one_of, needed))
        self._cyclic: set[VariableTracker] = set()
        self._unfilled: list[tuple[VariableTracker, str]] = []
        self._kept: dict[VariableTracker, tuple[VariableTracker, str]] = {}
        self.refilled: set[VariableTracker] = set()
        self._depth = 0
        self._survey()

    def _survey(self) -> None:
        """Count who is referred to how often, and find the changeable values that contain themselves."""
        todo = list(self._uses)
        seen: set[VariableTracker] = set()
        graph: dict[VariableTracker, list[VariableTracker]] = {}
        while todo:
            variable = todo.pop()
            if variable in seen or variable in self._known or is_outside(variable):
                continue
            seen.add(variable)
            graph[variable] = list(parts(variable, self.side_effects))
            self._uses.update(map(self._one_of, graph[variable]))
            todo += graph[variable]
        for variable in graph:
            if type(variable) in FILLERS and _contains_itself(variable, graph):
                self._cyclic.add(variable)
            for name, part in KEEPERS[type(variable)](variable).items() if type(variable) in KEEPERS else ():
                if self._uses[part] > 1 and part in graph:
                    self._kept[part] = variable, name
                    self._uses[variable] += 1

    def _one_of(self, variable: VariableTracker) -> VariableTracker:
        """The first of the trackers of one object, for what is made anew."""
        if isinstance(variable, NumberVariable) and variable.made.text and variable.pinned is not None:
            variable = variable.pinned
        if not is_new(variable):
            return variable
        assert isinstance(variable, ConstantVariable)
        return self._trackers.setdefault(id(variable.here), variable)

    def value(self, variable: VariableTracker) -> str:
        """An expression for the value: a name, a literal, or the construction of what is used only here."""
        if isinstance(variable, ConstantVariable | NumberVariable) and variable not in self._known:
            variable = self._one_of(variable)
        if variable in self._known:
            return self._known[variable]
        if isinstance(variable, ConstantVariable) and not is_new(variable):
            return self.literal(variable.value)
        if isinstance(variable, TupleVariable) and variable.real is not None:
            return self.literal(variable.real)
        if isinstance(variable.source, Referent):
            return variable.source.expression(self.names)
        if isinstance(variable.source, Constant):
            return self.constant(variable.source.value, variable.source.name)
        if isinstance(variable, CellVariable) and variable.cell is not None:
            return self.names.constant(variable.cell, "cell")
        if variable.source is None and isinstance(variable, _LIVING):
            return self.constant(variable.value)
        if variable in self._kept:
            keeper, name = self._kept[variable]
            return f"{self.value(keeper)}.{name}"
        build = BUILDERS.get(type(variable))
        if build is None or is_outside(variable):
            raise cannot_rebuild(variable)
        self._depth += 1
        text = self._build_cyclic(variable) if variable in self._cyclic else self._build(variable, build)
        self._depth -= 1
        self._fill_waiting()
        return text

    def _build(self, variable: VariableTracker, build: Build) -> str:
        text = build(self, variable)
        if self._uses[variable] > 1 and not text.isidentifier():
            text = self.assign(hint_of(variable), text)
        if text.isidentifier():
            self._known[variable] = text
        return text

    def begin(self, variable: VariableTracker, text: str) -> str:
        """The name of a value that other statements change while it is known; `text` makes it."""
        if variable not in self._known:
            self._known[variable] = self.assign(hint_of(variable), text)
        return self._known[variable]

    def begin_object(self, variable: VariableTracker, contents: VariableTracker) -> None:
        """Make an object whose contents other statements change; it is filled when everything around it exists."""
        self._build_cyclic(variable)
        self._known[contents] = self._known[variable]

    def _build_cyclic(self, variable: VariableTracker) -> str:
        """Make the value without its contents, which are put in when everything around it exists."""
        empty, _ = FILLERS[type(variable)]
        name = self.assign(hint_of(variable), empty(self, variable))
        self._known[variable] = name
        self._unfilled.append((variable, name))
        return name

    def _fill_waiting(self) -> None:
        while self._depth == 0 and self._unfilled:
            variable, name = self._unfilled.pop(0)
            self._depth += 1
            _, fill = FILLERS[type(variable)]
            fill(self, variable, name)
            self._depth -= 1

    def values(self, variables: Iterable[VariableTracker]) -> str:
        """Comma-separated expressions."""
        return ", ".join([self.value(variable) for variable in variables])

    def assign(self, hint: str, text: str) -> str:
        """Bind the value of `text` to a new name, which is returned."""
        name = self.names.fresh(hint)
        self.bound.append(name)
        self.lines.append(f"{name} = {text}")
        return name

    def literal(self, value: object) -> str:
        """Python text for a constant: a literal where there is one, else a name."""
        spelled = self.pins.literal(value)
        if spelled is not None:
            return spelled
        if isinstance(value, torch.dtype):
            return self.constant(value, str(value).removeprefix("torch."))
        return self.constant(value)

    def constant(self, value: object, hint: str = "") -> str:
        """Returns a name that is bound to an object which lives on.

        A path to the object (`torch.sin`) is no name for it: a store of this program may have replaced it there. So
        may it a builtin, which otherwise keeps its own name.
        """
        if not hint:
            hint = _TYPE_NAMES.get(value, name_of(value)) if isinstance(value, type) else name_of(value)
        if self.side_effects.writes_globals(vars(builtins)):
            hint = f"own_{hint}"
        return self.names.constant(value, hint)


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
    why = "The tracer must break the graph before such a value is needed behind it."
    return InternalError(Diagnostic("MD260", what, why=why, fix="Please report this with the function."))


def tuple_literal(texts: Iterable[str]) -> str:
    """Text for a tuple of these expressions."""
    texts = list(texts)
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
