"""Owns what a program asks of an immutable value from outside without needing all of it: `r.start`, `len(text)`,
`mode.startswith("a")`. Only the answer is guarded.

Which values are constants is decided in `tracer/records/constants.py`, how numbers and text are compared in
`tracer/numbers/arithmetic.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Source
from minidynamo.tracer.numbers import arithmetic
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable

_BOUNDS = frozenset(("start", "stop", "step"))
_DAY = frozenset(("year", "month", "day"))
_CLOCK = frozenset(("hour", "minute", "second", "microsecond"))
_SEQUENCE = frozenset(("__len__", "__getitem__", "__contains__"))
_TEXT = frozenset(("startswith", "endswith", "find", "count", "isdigit", "isalpha", "isidentifier"))
_TEXT |= {"lower", "upper", "strip", "casefold"}
# By class: the attributes, and the methods whose answers are small.
_ATTRIBUTES: dict[type, frozenset[str]] = {
    range: _BOUNDS,
    slice: _BOUNDS,
    complex: frozenset(("real", "imag")),
    torch.device: frozenset(("type", "index")),
    torch.dtype: frozenset(("is_floating_point", "is_complex", "is_signed", "itemsize")),
    datetime.date: _DAY,
    datetime.datetime: _DAY | _CLOCK,
    datetime.time: _CLOCK,
    datetime.timedelta: frozenset(("days", "seconds", "microseconds")),
}
_OF_ANY_CLASS = (slice, torch.device)  # what their attributes hold may also be None
_METHODS: dict[type, frozenset[str]] = {range: _SEQUENCE, str: _SEQUENCE | _TEXT, bytes: _SEQUENCE}
_SMALL = (bool, int, float, str, type(None))
_SPELLED = {"__getitem__": "{{0}}[{}]", "__contains__": "({} in {{0}})"}


def attribute(tx: Tracer, whole: ConstantVariable, name: str) -> VariableTracker | None:
    """`whole.name`, for a value that nobody has needed so far; None where that is no part of it."""
    if whole.source is None or whole.is_read or name not in _ATTRIBUTES.get(whole.python_type, ()):
        return None
    place, value = Computed(f"{{0}}.{name}", (whole.source,)), getattr(whole.here, name)
    if whole.python_type in _OF_ANY_CLASS and type(value) in _SMALL:
        tx.guard(place, GuardKind.TYPE, type(value))
    return _part(tx, place, value, is_kept=getattr(whole.here, name) is value)


def answer(
    tx: Tracer, whole: VariableTracker, name: str, args: Sequence[VariableTracker] = ()
) -> VariableTracker | None:
    """`whole.name(*args)`, for a value that nobody has needed so far; None where it takes all of it to tell."""
    if not isinstance(whole, ConstantVariable) or whole.source is None or whole.is_read:
        return None
    if name not in _METHODS.get(whole.python_type, ()) or any(arg.python_type not in (int, str, bytes) for arg in args):
        return None
    given = [arg.value for arg in args if isinstance(arg, ConstantVariable)]
    try:
        value = getattr(whole.here, name)(*given)
    except Exception:  # the program is told where the call is run as a whole
        return None
    if len(given) < len(args):
        return None
    shown = ", ".join(map(repr, given))
    if name == "__len__":
        return _part(tx, Computed("{0}({1})", (Constant(len, "len"), whole.source)), value)
    template = _SPELLED.get(name, f"{{{{0}}}}.{name}({{}})")
    return None if "{" in shown or "}" in shown else _part(tx, Computed(template.format(shown), (whole.source,)), value)


def _part(tx: Tracer, place: Source, value: object, *, is_kept: bool = False) -> VariableTracker | None:
    """What is read at `place`; unless the whole keeps it, another object each time."""
    if type(value) not in _SMALL:
        return None
    if type(value) is int and tx.graph.shapes.varies(place, value):
        return tx.graph.integer(value, place)
    read = tx.graph.guard_when_asked(place, GuardKind.EQUALS, value)
    return ConstantVariable(value, source=place, on_read=read, read_anew=not is_kept)


def truth(tx: Tracer, whole: ConstantVariable) -> bool:
    """`bool(whole)`; only the answer is guarded where a comparison or the length gives it."""
    if arithmetic.is_lazy(whole):
        return arithmetic.truth_of_unread(tx, whole)
    length = answer(tx, whole, "__len__")
    return bool(whole.value) if length is None else tx.truth(length)
