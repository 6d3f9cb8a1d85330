"""Owns what a trace is asked for: one frame, with the real values that it was entered with.

What is learned from it is in `traced_frame.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType
from typing import Any

from minidynamo.bytecode.analysis import starred_parameters
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.source import Local, Source


@dataclass(frozen=True, eq=False)
class StackSlot:
    """A value on the stack of a resume point, under the name of the resume function's parameter."""

    name: str
    value: Any


@dataclass(frozen=True, eq=False)
class FrameRequest:
    """One frame to trace, with the real values that it was entered with.

    `index` is the instruction to start at: 0 for a function that is called, else a resume point. `arguments` holds the
    bound plain locals by slot name (for a call: the parameters), `cells` the real cells by name: the closure of a
    called function; all cell and free variables of a resume point. `stack` is bottom first, None for NULL. `steal` are
    the lists that the caller gave up, with the places where they arrive. With `fullgraph` the first graph break is
    raised. `parameters` gives the generated program's name of a slot whose own name differs from it (not every slot is
    called by an identifier). `expects`: a graph may check that the program does not raise
    (`tracer/frames/runtime_asserts.py`).
    """

    code: CodeType
    namespace: dict[str, Any]
    arguments: Mapping[str, Any]
    cells: Mapping[str, CellType] = field(default_factory=dict)
    index: int = 0
    stack: tuple[StackSlot | None, ...] = ()
    steal: Mapping[Source, Any] = field(default_factory=dict)
    fullgraph: bool = False
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    profile: FrameProfile | None = None
    expects: bool = True

    @property
    def title(self) -> str:
        """What messages and generated programs call the frame."""
        return self.name or self.code.co_name

    def local(self, slot: str) -> Local:
        """Where the value of a slot arrives."""
        return Local(self.parameters.get(slot, slot))

    def spread(self) -> frozenset[Source]:
        """Where the arguments arrive that a called function takes with `*` and `**`."""
        names = () if self.index else starred_parameters(self.code)
        return frozenset(self.local(name) for name in names)
