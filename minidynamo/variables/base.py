"""Owns the root of all variable trackers, and the trackers of constants and symbolic numbers.

A tracker records the facts that are known about one Python value. It is a plain record: no method of a tracker builds
another tracker, calls the tracer or writes code. Verbs are in `tracer/`: `wrap.py` decides which values are constants,
`numbers/arithmetic.py` computes with symbolic numbers. Only a lazy value becomes another tracker when it is realized. A
Python object has one tracker during a trace, so `is` between trackers answers `is` between values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from operator import attrgetter
from typing import Any, NoReturn

import torch.fx

from minidynamo.core.records import record
from minidynamo.guards.source import Source


@record(eq=False)
class VariableTracker:
    """A value during capture."""

    #: The expression through which the value is found; None for a value that was created during capture.
    source: Source | None = field(default=None, kw_only=True)

    @property
    def python_type(self) -> type:
        """The class of the value at run time."""
        raise NotImplementedError(type(self).__name__)

    def realize(self) -> VariableTracker:
        """Returns the tracker to work with; a lazy value is wrapped and guarded now."""
        return self

    def realized(self) -> VariableTracker:
        """Returns the tracker that a lazy value has got already; the variable itself if it has none, or is not lazy."""
        return self


# The `python_type` of trackers with a field `cls`, and of trackers whose field `value` has the real object.
OF_CLS: Any = property(attrgetter("cls"))
OF_VALUE: Any = property(lambda self: type(self.value))


class ConstantVariable(VariableTracker):
    """An immutable value that is known now: numbers, text, None, dtypes, devices, enum members, ranges, slices of
    constants.

    An external constant may be passed on, stored and asked for its type before the program needs its value.
    """

    __match_args__ = ("value",)

    def __init__(
        self,
        value: Any,
        *,
        source: Source | None = None,
        on_read: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(source=source)
        #: The value in this call; using it guards nothing.
        self.unguarded_value = value
        #: Called at the first use of `value`; it adds the guard.
        self._on_read = on_read

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

    @property
    def python_type(self) -> type:
        return type(self.unguarded_value)


class LazyTextVariable(ConstantVariable):
    """A text with the value of a tensor, which the program only passes on, for example as the message of a check.

    If the text outlives the graph, the residual program computes it after the graph: `make(*operands)`."""

    python_type: Any = str
    unguarded_value: Any = property(attrgetter("value"))
    is_read = True  # there is no guard that a read could avoid

    def __init__(
        self,
        make: Callable[..., str],
        operands: tuple[VariableTracker, ...],
        check: Callable[[Any], None],
        refuse: Callable[[], NoReturn],
    ) -> None:
        VariableTracker.__init__(self)
        self.make = make
        self.operands = operands
        #: Takes the trace at its end; abandons the trace if the text would differ after the graph.
        self.check = check
        #: Abandons the trace: the next trace breaks the graph where the text is formatted.
        self.refuse = refuse

    def __repr__(self) -> str:
        return "LazyTextVariable()"

    @property
    def value(self) -> NoReturn:
        """Abandons the trace, because the text is not known."""
        self.refuse()


def is_none_constant(variable: VariableTracker | None) -> bool:
    """Returns whether the variable is the constant None."""
    return isinstance(variable, ConstantVariable) and variable.python_type is type(None)


@record(eq=False)
class NumberVariable(VariableTracker):
    """An int or float that Python can compute from the frame's arguments, as `source` describes."""

    python_type = OF_CLS
    #: A torch.SymInt, or the float of this call.
    value: Any
    #: int or float.
    cls: type
    #: Specializes the number: guards its value and returns it.
    specialize: Callable[[], Any]
    #: Computes the number in the graph; None until the graph needs it.
    node: torch.fx.Node | None = None
    #: The constant after `specialize`.
    specialized: ConstantVariable | None = None
    #: Whether the number is passed to a function that takes no symbols: it then receives the number of each call.
    is_scalar_argument: bool = False

    @property
    def unguarded_value(self) -> Any:
        """The number in this call; nothing is guarded."""
        return self.value.node.hint if isinstance(self.value, torch.SymInt) else self.value
