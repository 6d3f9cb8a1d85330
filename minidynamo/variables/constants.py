"""Owns the tracker of values that are fully known while tracing.

It does not decide which values are constants; `tracer/wrap.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidynamo.guards.source import Source
from minidynamo.variables.base import VariableTracker


class ConstantVariable(VariableTracker):
    """An immutable value known now: numbers, text, None, dtypes, devices, enum members, ranges, slices of constants.

    One from outside may be passed on, stored and asked for its type before anybody needs its `value`: `on_read` is
    called when somebody does.
    """

    __match_args__ = ("value",)

    def __init__(
        self, value: Any, *, source: Source | None = None, on_read: Callable[[], object] | None = None
    ) -> None:
        super().__init__(source=source)
        self.here = value
        self._on_read = on_read

    def __repr__(self) -> str:
        return f"ConstantVariable({self.here!r})"

    @property
    def value(self) -> Any:
        """The value, on which the trace depends from now on. `here` is what it is in this call."""
        if self._on_read is not None:
            on_read, self._on_read = self._on_read, None
            on_read()
        return self.here

    @property
    def is_read(self) -> bool:
        """Whether the trace depends on the value, or nothing but this value can be here."""
        return self._on_read is None

    def settle(self) -> None:
        """Say that something else guarantees the value by now."""
        self._on_read = None

    @property
    def python_type(self) -> type:
        return type(self.here)
