"""Owns the trackers of exceptions that are made or raised during capture, and of their tracebacks.

Raising is in `tracer/frames/exceptions.py`.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ObjectVariable


@dataclass(eq=False)
class ExceptionVariable(ObjectVariable):
    """An exception that was made during capture."""

    #: None if only the class of the exception is known.
    args: TupleVariable | None = None
    #: The known attributes that the built-in class stores in addition to the arguments.
    fields: dict[str, VariableTracker] = field(default_factory=dict)
    #: The result of `str()`, if it follows from `args` and `fields`.
    text: str | None = None
    #: The called class and its arguments, if only the class itself fills in `fields` and `text`.
    made_by: tuple[type[BaseException], list[VariableTracker], dict[str, VariableTracker]] | None = None
    cause: VariableTracker | None = None
    context: VariableTracker | None = None
    suppresses_context: bool = False
    #: Whether the exception was raised. The traceback exists only if Python itself raises.
    is_raised: bool = False


@dataclass(eq=False)
class TracebackVariable(VariableTracker):
    """The traceback of a raised exception: a value to pass on, which only Python can inspect."""

    python_type = types.TracebackType
    exception: ExceptionVariable
