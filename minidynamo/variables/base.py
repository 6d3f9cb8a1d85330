"""Owns the root of all variable trackers: what the tracer knows of one Python value.

Trackers are plain records. No method of a tracker builds another tracker, calls the tracer or writes code; verbs live
in `tracer/`. One Python object has one tracker during a trace, so `is` between trackers answers `is` between values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minidynamo.guards.source import Source


@dataclass(eq=False)
class VariableTracker:
    """What is known of a value. `source` says where it lives; None for a value made while tracing."""

    source: Source | None = field(default=None, kw_only=True)

    @property
    def python_type(self) -> type:
        """The class the value has at run time."""
        raise NotImplementedError(type(self).__name__)
