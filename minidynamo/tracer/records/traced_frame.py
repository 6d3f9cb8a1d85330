"""Owns the request for a trace, one frame with the real values at the entry; and the result: guards, graph, side
effects, and the end of the frame.

Capture passes nothing else to later stages: `tracer/capture/residual.py` prints the result, `frontend/convert_frame.py`
compiles the graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from types import CellType, CodeType
from typing import Any

import torch.fx

from minidynamo.bytecode.analysis import starred_parameters
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, InternalError
from minidynamo.guards.guard import Guard
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Local, Source, is_drawn
from minidynamo.tracer.graph.written_memory import Lookups, Writes
from minidynamo.tracer.records.side_effects import Effect, SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.tensors import ItemVariable, OpaqueResult, TensorVariable


@record(frozen=True, eq=False)
class StackSlot:
    """A value on the stack of a resume point."""

    #: the name of the resume function's parameter
    name: str
    #: the real value
    value: Any


@record(frozen=True, eq=False)
class FrameRequest:
    """A frame to trace, with the real values at the entry."""

    #: the user's code object
    code: CodeType
    #: the globals of the frame
    namespace: dict[str, Any]
    #: the bound plain locals by slot name; for a call: the parameters
    arguments: Mapping[str, Any]
    #: the real cells by name: the closure of a called function; all cell and free variables of a resume point
    cells: Mapping[str, CellType] = field(default_factory=dict)
    #: the first instruction: 0 for a call, else a resume point
    index: int = 0
    #: bottom first; None for NULL
    stack: tuple[StackSlot | None, ...] = ()
    #: the donated lists, by the source of the parameter
    steal: Mapping[Source, Any] = field(default_factory=dict)
    #: whether to raise the first graph break
    fullgraph: bool = False
    #: a name for messages and generated programs; the name of the code object if empty
    name: str = ""
    #: names in the generated program for slots whose own names cannot be used (not every slot name is an identifier)
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: the sizes and numbers that vary, from earlier captures
    profile: FrameProfile | None = None
    #: whether the graph may have runtime asserts (`tracer/frames/runtime_asserts.py`)
    may_assert: bool = True
    #: whether the graph may assert that numbers are finite
    may_assume_finite: bool = True
    #: the positions, as code objects and indices, of refused deferrals (`tracer/frames/deferrals.py`) and of refused
    #: locks (`tracer/handlers/locks.py`), with the reasons
    refused_positions: Mapping[tuple[CodeType, int], str] = field(default_factory=dict)
    #: the positions of reads of tensors that come before the graph (`tracer/numbers/early_reads.py`), also of earlier
    #: captures
    early_reads: set[tuple[CodeType, int]] = field(default_factory=set)
    #: whether loops over modules may be continued (`tracer/capture/module_loops.py`)
    opens_loops: bool = True

    @property
    def title(self) -> str:
        """The name of the frame in messages and generated programs."""
        return self.name or self.code.co_name

    def local(self, slot: str) -> Local:
        """Returns the source of a slot."""
        return Local(self.parameters.get(slot, slot))

    def starred(self) -> frozenset[Source]:
        """Returns the sources of the `*` and `**` parameters of a called function."""
        names = () if self.index else starred_parameters(self.code)
        return frozenset(self.local(name) for name in names)


@record(frozen=True)
class GraphInput:
    """A placeholder of the graph."""

    #: the placeholder node
    node: torch.fx.Node
    #: the expression by which the residual reads the value
    source: Source
    #: the tracker of the value
    variable: VariableTracker
    #: whether the value is a list that the graph empties, because the program pops the elements or the list is donated
    is_emptied: bool = False
    #: whether the user donated the list
    is_donated: bool = False


@record(frozen=True, eq=False)
class EarlyClear:
    """A container slot outside the frame from which the program removes a tensor that the graph takes: after `effect`,
    the slot is empty or None."""

    #: index of a list, key of a dict, or name of an attribute or global
    key: Hashable
    #: the container or object; the dictionary of a module for a global
    owner: VariableTracker | dict[str, Any]
    #: the side effect that clears the slot
    effect: Effect
    #: whether the slot is removed; else None is in it
    is_removed: bool
    #: whether the attribute is outside the instance dictionary
    is_slot: bool = False


@record(eq=False)
class TakenLock:
    """The lock that a frame takes."""

    #: the external lock
    lock: VariableTracker
    #: the code object and the index of each `with` so far
    positions: list[tuple[CodeType, int]] = field(default_factory=list)
    #: the number of open `with` blocks
    depth: int = 0
    #: the number of nodes that the graph has received in the blocks
    nodes_inside: int = 0


@record(frozen=True, eq=False)
class Null:
    """A NULL on the interpreter's stack, below a callable."""


@record(frozen=True, eq=False)
class Return:
    """The frame ends by returning this value."""

    value: VariableTracker

    def values(self) -> list[VariableTracker]:
        """Returns the results of the frame."""
        return [self.value]


@record(frozen=True, eq=False)
class Break:
    """The frame is cut before an instruction."""

    #: index of the instruction (the first of its group)
    index: int
    #: the stack, bottom first
    stack: tuple[VariableTracker | Null, ...]
    #: the bound plain locals that are still live, by name
    local_variables: dict[str, VariableTracker]
    #: all cell and free variables of the code object, by name
    cells: dict[str, CellVariable]
    #: the reason for the cut
    diagnostic: Diagnostic
    #: stack position of a callee with its own dispatcher, or None
    compiled_callee: int | None = None
    #: names of locals that stay bound although never read again
    lasting: frozenset[str] = frozenset()

    def values(self) -> list[VariableTracker]:
        """Returns the values that the frame needs after the break."""
        stack = [value for value in self.stack if not isinstance(value, Null)]
        return [*stack, *self.local_variables.values(), *self.cells.values()]


@record(frozen=True, eq=False)
class TracedFrame:
    """The complete result of tracing one frame."""

    #: the name of the frame in messages and generated programs
    name: str
    #: guards of the tracer; `all_guards` adds those on sizes and numbers
    guards: tuple[Guard, ...]
    #: the captured graph; None without operations
    graph: torch.fx.GraphModule | None
    #: one record per placeholder, in order
    inputs: tuple[GraphInput, ...]
    #: the values returned by the graph, in order: all that `exit` or the journal need
    outputs: tuple[TensorVariable | OpaqueResult | ItemVariable, ...]
    #: the journal
    side_effects: SideEffects
    #: the end of the frame
    exit: Return | Break
    #: whether an operation has a `try` or `with` around it, here or in a callee
    emits_in_try: bool = False
    #: whether a `try` or `with` of the user's code is around an operation
    user_may_catch: bool = False
    #: the symbols of the frame
    shapes: Shapes | None = None
    #: donated lists that are needed after a break; the code that runs the steps empties the lists at the end
    donated_after_break: tuple[ListVariable, ...] = ()
    #: sources of the arguments that must not die earlier than in eager
    lasting: frozenset[Source] = frozenset()
    #: the external memory that the graph writes to
    writes: Writes | None = None
    #: the positions that decide alone whether the graph raises; None if other data matters
    lookups: Lookups | None = None
    #: whether the graph may raise an error that depends on data
    may_raise: bool = False
    #: slots that may be cleared before the graph runs, because the program clears them later
    early_clears: tuple[EarlyClear, ...] = ()
    #: the lock to hold while the residual program runs
    lock: Source | None = None
    #: the sizes of the tensors that the frame writes to external containers
    written_sizes: FrameProfile = field(default_factory=FrameProfile)

    def all_guards(self) -> Sequence[Guard]:
        """Returns the guards, including the decisions of the tracer and, after compilation, of the backend on sizes and
        numbers."""
        guards = self.guards if self.shapes is None else self.shapes.guards(self.guards)
        if self.side_effects.draws and any(is_drawn(guard.source) for guard in guards):
            raise InternalError(
                Diagnostic("MD299", "a compiler stage decides by a random number that the program draws")
            )
        return guards
