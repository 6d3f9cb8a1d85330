"""Owns the tracker of constants: values that are fully known during capture.

The decision which values are constants is in `tracer/wrap.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidynamo.guards.source import Source
from minidynamo.variables.base import VariableTracker


class ConstantVariable(VariableTracker):
    """An immutable value that is known now: numbers, text, None, dtypes, devices, enum members, ranges, slices of
    constants.

    An external constant may be passed on, stored and asked for its type before the program needs its value. A constant
    without a source was computed by the program, as a new object of this call, unless it is `lasting`.
    """

    __match_args__ = ("value",)

    def __init__(
        self,
        value: Any,
        *,
        source: Source | None = None,
        on_read: Callable[[], object] | None = None,
        lasting: bool = False,
        new_on_each_read: bool = False,
        made_of: tuple[VariableTracker, ...] = (),
        on_identity: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(source=source)
        #: Whether each read of the source returns a new object, as a read of a tensor's size does.
        self.new_on_each_read = new_on_each_read
        #: Objects that the value gives back: the bounds of a range, the text of a match, arguments of a generic class.
        self.made_of = made_of
        #: Whether the object outlives the call: a literal, or an object that is kept alive elsewhere.
        self.lasting = lasting
        #: The value in this call; using it guards nothing.
        self.unguarded_value = value
        #: Called at the first use of `value`; it adds the guard.
        self._on_read = on_read
        #: Called when the identity of an object without a source matters: equal objects are likely in any call, as for
        #: the name that is a key of a dict.
        self._on_identity = on_identity

    def __repr__(self) -> str:
        return f"ConstantVariable({self.unguarded_value!r})"

    @property
    def value(self) -> Any:
        """The value; a read makes the trace depend on the value. See also `unguarded_value`."""
        if self._on_read is not None:
            on_read, self._on_read = self._on_read, None
            on_read()
        return self.unguarded_value

    @property
    def is_read(self) -> bool:
        """True if the trace depends on the value, or no other value is possible."""
        return self._on_read is None

    def mark_guarded(self) -> None:
        """Drops `on_read`: a guard or another fact already guarantees the value."""
        self._on_read = None

    def require_identity(self) -> None:
        """Makes the trace depend on the identity of the object among all equal objects."""
        if self._on_identity is not None:
            on_identity, self._on_identity = self._on_identity, None
            on_identity()

    @property
    def python_type(self) -> type:
        return type(self.unguarded_value)


def is_none_constant(variable: VariableTracker | None) -> bool:
    """Returns whether the variable is the constant None."""
    return isinstance(variable, ConstantVariable) and variable.python_type is type(None)
