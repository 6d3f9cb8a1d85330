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
    called when somebody does. One without a source was computed by the program, as the object that Python has made
    in this call, unless it is `lasting`: a literal, or held by something that lives on. `read_anew`: each look at its
    source gives another object, as at the size of a tensor. `made_of` are the objects that it gives back: the bounds of
    a range, the text of a match, the arguments of a generic class. `on_identity` is called when it matters that it is
    this object, where it has no source because any call is likely to have the same: the name that is a key of a dict.
    """

    __match_args__ = ("value",)

    def __init__(
        self,
        value: Any,
        *,
        source: Source | None = None,
        on_read: Callable[[], object] | None = None,
        lasting: bool = False,
        read_anew: bool = False,
        made_of: tuple[VariableTracker, ...] = (),
        on_identity: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(source=source)
        self.read_anew = read_anew
        self.made_of = made_of
        self.lasting = lasting
        self.here = value
        self._on_read = on_read
        self._on_identity = on_identity

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

    def identify(self) -> None:
        """Say that the trace depends on which of all equal objects this is."""
        if self._on_identity is not None:
            on_identity, self._on_identity = self._on_identity, None
            on_identity()

    @property
    def python_type(self) -> type:
        return type(self.here)


def holds_none(variable: VariableTracker | None) -> bool:
    """Whether a tracker stands for None."""
    return isinstance(variable, ConstantVariable) and variable.python_type is type(None)
