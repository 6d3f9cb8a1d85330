"""Owns texts that Python makes from symbolic numbers: `f"step {n}"`.

The content of a text is guarded only when the program depends on it. A text that is printed, stored or returned is made
again in each call, before the graph runs. Arithmetic is not here."""

from __future__ import annotations

import functools
import operator
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.guards.source import Computed
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers.arithmetic import call_computed, is_lazy
from minidynamo.tracer.records.constants import as_constant
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, TupleVariable

# Presentations that some numbers do not have (a character), or that depend on settings of the process.
_PARTIAL_FORMATS = ("c", "n")
_PARTIAL_PERCENT_FORMATS = re.compile(r"%[-#0 +\d.]*[c*]")
# Classes whose text consists of the texts of the items.
_SEQUENCES = (list, tuple, torch.Size)


def varies(part: VariableTracker) -> bool:
    """Returns whether the value is a symbolic number, or a text made from symbolic numbers, that has not been read."""
    is_text = isinstance(part, ConstantVariable) and isinstance(part.source, Computed) and part.python_type is str
    return (is_text and is_lazy(part)) or (isinstance(part, NumberVariable) and part.cls in (int, float))


def formatted(tx: Tracer, number: VariableTracker, how: str) -> VariableTracker | None:
    """Returns `format(number, how)` of a number or text; None if a constant is needed."""
    if not varies(number) or how.endswith(_PARTIAL_FORMATS):
        return None
    if not how:
        return written(tx, str, number)
    return call_computed(tx, format, [number, ConstantVariable(how)], {})


def written(tx: Tracer, function: Callable[[Any], str], obj: VariableTracker) -> VariableTracker | None:
    """Returns `str(obj)` or `repr(obj)` of a number or a sequence of numbers; None if a constant is needed."""
    if isinstance(obj, SequenceVariable) and obj.cls in _SEQUENCES:
        if not any(map(varies, obj.items)) or not all(map(_is_number, obj.items)):
            return None
        return call_computed(tx, functools.partial(_text_of, function, obj.cls), [obj], {})
    if not varies(obj):
        return None
    if obj.python_type is str and function is str:
        return obj
    return call_computed(tx, function, [obj], {})


def _text_of(function: Callable[[Any], str], cls: Callable[[Any], Any], items: Sequence[Any]) -> str:
    return function(cls(items))


def joined(tx: Tracer, between: str, parts: Sequence[VariableTracker]) -> VariableTracker | None:
    """Returns `between.join(parts)`; None if constants are needed."""
    if not any(map(varies, parts)) or not all(_is_text(part) for part in parts):
        return None
    return call_computed(tx, between.join, [TupleVariable([*parts])], {})


def filled(
    tx: Tracer, text: str, args: Sequence[VariableTracker], named: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Returns `text.format(*args, **named)`; None if constants are needed."""
    operands = [*args, *named.values()]
    if not any(map(varies, operands)) or not all(_is_text(part) or _is_number(part) for part in operands):
        return None
    try:
        fields = [*string.Formatter().parse(text)]
    except ValueError:
        return None
    if any(how and (how.endswith(_PARTIAL_FORMATS) or "{" in how) for _, _, how, _ in fields):
        return None
    return call_computed(tx, text.format, args, named)


def text_binary(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Returns `left + right` or `left % right` for texts; None if constants are needed, or for anything else."""
    if not _is_text(left) or function not in (operator.add, operator.mod):
        return None
    if function is operator.add:
        return joined(tx, "", [left, right])
    operands = [*right.items] if isinstance(right, TupleVariable) else [right]
    if not any(map(varies, operands)) or not all(_is_text(part) or _is_number(part) for part in operands):
        return None
    text = as_constant(left)
    if _PARTIAL_PERCENT_FORMATS.search(text):
        return None
    return call_computed(tx, text.__mod__, [TupleVariable(operands)], {})


def _is_text(part: VariableTracker) -> bool:
    return isinstance(part, ConstantVariable) and part.python_type is str


def _is_number(part: VariableTracker) -> bool:
    return isinstance(part, NumberVariable | ConstantVariable) and part.python_type in (int, float)
