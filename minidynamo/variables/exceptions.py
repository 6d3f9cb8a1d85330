"""Owns the trackers of exceptions that are made or raised while tracing, and of their tracebacks.

It does not raise them; `tracer/frames/exceptions.py` does.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ObjectVariable


@dataclass(eq=False)
class ExceptionVariable(ObjectVariable):
    """An exception made while tracing. `args` is None when only its class is known, not what it says.

    Once it `is_raised`, it has a traceback, which exists only when Python itself raises. `fields` are what its built-in
    class keeps beside the arguments, as far as that is known, and `text` is what it says where that follows from them.
    `made_by` is the class that was called, and with what, where only the class itself fills these in.
    """

    args: TupleVariable | None = None
    fields: dict[str, VariableTracker] = field(default_factory=dict)
    text: str | None = None
    made_by: tuple[type[BaseException], list[VariableTracker], dict[str, VariableTracker]] | None = None
    cause: VariableTracker | None = None
    context: VariableTracker | None = None
    suppresses_context: bool = False
    is_raised: bool = False


@dataclass(eq=False)
class TracebackVariable(VariableTracker):
    """The traceback of a raised exception: it can be handed on, and looked at only by Python."""

    exception: ExceptionVariable

    @property
    def python_type(self) -> type:
        return types.TracebackType
