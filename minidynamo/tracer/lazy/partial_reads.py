"""Owns partial reads of an immutable external value: `r.start`, `len(text)`, `mode.startswith("a")`. Only the answer is
guarded.

`tracer/records/constants.py` decides which values are constants; `tracer/numbers/arithmetic.py` compares numbers and
text.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers import arithmetic
from minidynamo.variables.base import ConstantVariable, VariableTracker

_BOUNDS = frozenset(("start", "stop", "step"))
_DAY = frozenset(("year", "month", "day"))
_CLOCK = frozenset(("hour", "minute", "second", "microsecond"))
_SEQUENCE = frozenset(("__len__", "__getitem__", "__contains__"))
_TEXT = frozenset(("startswith", "endswith", "find", "count", "isdigit", "isalpha", "isidentifier"))
_TEXT |= {"lower", "upper", "strip", "casefold"}
# By class: the attributes, and the methods with small results.
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
_WITH_NONE = (slice, torch.device)  # classes whose attributes may also be None
_METHODS: dict[type, frozenset[str]] = {range: _SEQUENCE, str: _SEQUENCE | _TEXT, bytes: _SEQUENCE}
_SMALL = (bool, int, float, str, type(None))
_TEMPLATES = {"__getitem__": "{{0}}[{}]", "__contains__": "({} in {{0}})"}


def attribute(tx: Tracer, whole: ConstantVariable, name: str) -> VariableTracker | None:
    """Returns `whole.name` for a value that was not read yet; None if `name` is no partial read."""
    if whole.source is None or whole.is_read or name not in _ATTRIBUTES.get(whole.python_type, ()):
        return None
    source, value = Computed(f"{{0}}.{name}", (whole.source,)), getattr(whole.unguarded_value, name)
    if whole.python_type in _WITH_NONE and type(value) in _SMALL:
        tx.guard(source, GuardKind.TYPE, type(value))
    return _part(tx, source, value)


def answer(
    tx: Tracer, whole: VariableTracker, name: str, args: Sequence[VariableTracker] = ()
) -> VariableTracker | None:
    """Returns `whole.name(*args)` for a value that was not read yet; None if the call needs the whole value."""
    if not isinstance(whole, ConstantVariable) or whole.source is None or whole.is_read:
        return None
    if name not in _METHODS.get(whole.python_type, ()) or any(arg.python_type not in (int, str, bytes) for arg in args):
        return None
    arguments = [arg.value for arg in args if isinstance(arg, ConstantVariable)]
    try:
        value = getattr(whole.unguarded_value, name)(*arguments)
    except Exception:  # the complete call raises the error
        return None
    if len(arguments) < len(args):
        return None
    text = ", ".join(map(repr, arguments))
    if name == "__len__":
        return _part(tx, Computed("{0}({1})", (Constant(len, "len"), whole.source)), value)
    template = _TEMPLATES.get(name, f"{{{{0}}}}.{name}({{}})")
    return None if "{" in text or "}" in text else _part(tx, Computed(template.format(text), (whole.source,)), value)


def _part(tx: Tracer, source: Source, value: object) -> VariableTracker | None:
    """Returns the value read at `source`."""
    if type(value) not in _SMALL:
        return None
    if type(value) is int and tx.graph.shapes.varies(source, value):
        return tx.graph.integer(value, source)
    read = tx.graph.guard_on_read(source, GuardKind.EQUALS, value)
    return ConstantVariable(value, source=source, on_read=read)


def truth(tx: Tracer, whole: ConstantVariable) -> bool:
    """Returns `bool(whole)`; guards only the answer of a comparison or of the length, where possible."""
    if arithmetic.is_lazy(whole):
        return arithmetic.truth_of_lazy(tx, whole)
    length = answer(tx, whole, "__len__")
    return bool(whole.value) if length is None else tx.truth(length)
