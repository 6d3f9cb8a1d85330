"""Owns the request for a trace: one frame, with the real values at the entry.

`traced_frame.py` has the result.
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
    """A value on the stack of a resume point."""

    #: the name of the resume function's parameter
    name: str
    #: the real value
    value: Any


@dataclass(frozen=True, eq=False)
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

    @property
    def title(self) -> str:
        """The name of the frame in messages and generated programs."""
        return self.name or self.code.co_name

    def local(self, slot: str) -> Local:
        """Returns the source of a slot."""
        return Local(self.parameters.get(slot, slot))

    def spread(self) -> frozenset[Source]:
        """Returns the sources of the `*` and `**` parameters of a called function."""
        names = () if self.index else starred_parameters(self.code)
        return frozenset(self.local(name) for name in names)
