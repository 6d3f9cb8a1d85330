"""Owns the root of all variable trackers; a tracker records the knowledge of the tracer about one Python value.

Trackers are plain records. No method of a tracker builds another tracker, calls the tracer or writes code; verbs are in
`tracer/`. Only a lazy value becomes another tracker when it is realized. A Python object has one tracker during a
trace, so `is` between trackers answers `is` between values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from minidynamo.guards.source import Source


@dataclass(eq=False)
class VariableTracker:
    """A value during capture."""

    #: Where the value is found; None for a value that was made during capture.
    source: Source | None = field(default=None, kw_only=True)

    @property
    def python_type(self) -> type:
        """The class of the value at run time."""
        raise NotImplementedError(type(self).__name__)

    def realize(self) -> VariableTracker:
        """Returns the tracker to work with: a lazy value is wrapped and guarded."""
        return self

    def realized(self) -> VariableTracker:
        """Returns the tracker of a lazy value that was realized elsewhere; else the variable itself."""
        return self


# The `python_type` of trackers with a field `cls`, and of trackers whose field `value` has the real object.
OF_CLS: Any = property(attrgetter("cls"))
OF_VALUE: Any = property(lambda self: type(self.value))
