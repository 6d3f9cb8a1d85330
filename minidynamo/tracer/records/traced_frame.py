"""Owns the result of tracing a frame: what to check, what to run, what to replay, and how the frame ends.

It is the only thing that capture hands to the rest: `tracer/capture/residual.py` prints it, `frontend/convert_frame.py`
compiles it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from minidynamo.errors import Diagnostic, InternalError
from minidynamo.guards.guard import Guard
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Source, is_drawn
from minidynamo.tracer.graph.written_places import Lookups, Writes
from minidynamo.tracer.records.side_effects import Effect, SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.tensors import HookVariable, TensorVariable


@dataclass(frozen=True)
class GraphInput:
    """One placeholder: `source` is where the residual reads it. `given_up` lists are emptied by the graph, since the
    program takes elements from them, or since they are `stolen`: given up by the user."""

    node: torch.fx.Node
    source: Source
    variable: VariableTracker
    given_up: bool = False
    stolen: bool = False


@dataclass(frozen=True, eq=False)
class EarlyClear:
    """A place that the program empties of a tensor which the graph takes from there, by `effect`, so that nothing, or
    None, is there: an item of the container `owner` (or of a module's globals), or an attribute of the object `owner`,
    in a slot or in its dictionary. `node` stands for the tensor."""

    key: Hashable
    owner: VariableTracker | dict[str, Any]
    effect: Effect
    is_removed: bool
    node: torch.fx.Node
    is_slot: bool = False


@dataclass(frozen=True)
class Taking:
    """What the program takes from a place, `behind` so many calls of the user's operators. Nothing is there then, or
    None. `is_idle`: the graph does not use it any more when the last of these calls finds it there."""

    behind: int
    is_removed: bool
    is_idle: bool


@dataclass(frozen=True)
class Takings:
    """What the program takes from the lists that the graph empties, by their positions, and from other places."""

    lists: Mapping[ListVariable, Mapping[int, Taking]]
    places: Mapping[EarlyClear, Taking]


@dataclass(frozen=True, eq=False)
class Null:
    """A NULL on the interpreter's stack, below a callable."""


@dataclass(frozen=True, eq=False)
class Return:
    """The frame ends by returning this value."""

    value: VariableTracker

    def values(self) -> list[VariableTracker]:
        """What the frame leaves behind."""
        return [self.value]


@dataclass(frozen=True, eq=False)
class Break:
    """The frame is cut before the instruction with this index (the first of its group).

    `stack` is bottom first; `local_variables` holds the bound plain locals that are still live, `cells` all cell and
    free variables of the code object, by name. `compiled_callee` is the stack position of a callable that should be
    called through its own dispatcher, or None. `lasting` are locals that stay although nothing reads them any more.
    """

    index: int
    stack: tuple[VariableTracker | Null, ...]
    local_variables: dict[str, VariableTracker]
    cells: dict[str, CellVariable]
    diagnostic: Diagnostic
    compiled_callee: int | None = None
    lasting: frozenset[str] = frozenset()

    def values(self) -> list[VariableTracker]:
        """What the frame leaves behind."""
        stack = [value for value in self.stack if not isinstance(value, Null)]
        return [*stack, *self.local_variables.values(), *self.cells.values()]


@dataclass(frozen=True, eq=False)
class TracedFrame:
    """Everything that was learned from one frame.

    `outputs` are the tensors, and handles of their hooks, that the graph returns, in order: those that the exit or the
    journal need. `graph` is None when no operation was captured. `emits_in_try`: an operation has a `try` or `with`
    around it, here or in a callee; `awaits_errors`: in code of the user's.
    `lasting` is what the frame is entered with that must not die earlier than in the frame as written.
    `writes`: what the graph writes to outside; `may_raise`: data may make it raise an error; `lookups`: the positions
    that decide alone whether it does, where that is so.
    `emptied` are places that may be empty while the graph runs, since the program empties them; `takings` tells what
    the program takes there and from lists, unless something else is in a container when an operator of the user's is
    called.
    `lent` are lists that were given up and travel on behind a break; whoever drives the steps empties them in the end.
    """

    name: str
    guards: tuple[Guard, ...]
    graph: torch.fx.GraphModule | None
    inputs: tuple[GraphInput, ...]
    outputs: tuple[TensorVariable | HookVariable, ...]
    side_effects: SideEffects
    exit: Return | Break
    emits_in_try: bool = False
    awaits_errors: bool = False
    shapes: Shapes | None = None
    lent: tuple[ListVariable, ...] = ()
    lasting: frozenset[Source] = frozenset()
    writes: Writes | None = None
    lookups: Lookups | None = None
    may_raise: bool = False
    emptied: tuple[EarlyClear, ...] = ()
    takings: Takings | None = None

    def all_guards(self) -> Sequence[Guard]:
        """The guards, with what the tracer and, by now, the backend have decided on sizes and numbers."""
        guards = self.guards if self.shapes is None else self.shapes.guards(self.guards)
        if self.side_effects.draws and any(is_drawn(guard.source) for guard in guards):
            raise InternalError(Diagnostic("MD299", "a stage decides by a random number that the program draws"))
        return guards
