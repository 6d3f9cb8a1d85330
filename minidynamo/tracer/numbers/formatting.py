"""Owns texts of symbolic numbers, such as `f"step {n}"`, and of tensors.

The content of a text is guarded only when the program depends on it. A text that is printed, stored or returned is
formatted in each call, before the graph runs. Arithmetic is not here.

The text of a tensor is lazy: it is known only when the graph has run. If the program prints, stores or returns such a
text, it is formatted after the graph; the message of a check that holds is never formatted. If the program reads the
text, or changes the tensor, the frame is traced again, and the graph breaks where the text is formatted
(`tracer/frames/deferrals.py`)."""

from __future__ import annotations

import functools
import operator
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.guards.source import Computed
from minidynamo.tracer.frames.deferrals import defer
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers import graph_numbers
from minidynamo.tracer.numbers.arithmetic import call_computed, is_lazy
from minidynamo.tracer.records.constants import as_constant
from minidynamo.variables.base import ConstantVariable, LazyTextVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

# Presentations that some numbers do not have (a character), or that depend on settings of the process.
_PARTIAL_FORMATS = ("c", "n")
_PARTIAL_PERCENT_FORMATS = re.compile(r"%[-#0 +\d.]*[c*]")
# Classes whose text consists of the texts of the items.
_SEQUENCES = (list, tuple, torch.Size)


def lazy_text(tx: Tracer, make: Callable[..., str], value: VariableTracker, spec: str = "") -> VariableTracker | None:
    """Returns the lazy `str`, `repr` or `format(value, spec)` of a tensor, or of a number that the graph reads from a
    tensor; None if the graph must break."""
    if not _has_text(tx, value, spec):
        return None
    deferral = defer(tx, [value] if isinstance(value, TensorVariable) else [])
    if deferral is None:
        return None
    operands = (value, ConstantVariable(spec)) if spec else (value,)
    return LazyTextVariable(make, operands, deferral.check, deferral.refuse)


def _has_text(tx: Tracer, value: VariableTracker, spec: str) -> bool:
    """Returns whether `format(value, spec)` raises no error, whatever the value is."""
    if isinstance(value, ItemVariable):
        cls: type | None = value.cls
    elif isinstance(value, TensorVariable) and value.cls in (torch.Tensor, torch.nn.Parameter):
        fake = tx.graph.use(value)
        cls = None if fake.dim() or value.cls is not torch.Tensor else graph_numbers.class_in(fake)
        if not spec:
            return True
    else:
        return False
    if cls is None or spec.endswith(_PARTIAL_FORMATS):
        return False
    try:
        format(cls(1), spec)
    except ValueError:
        return False
    return True


def varies(part: VariableTracker) -> bool:
    """Returns whether the value is a symbolic number, or a text made from symbolic numbers, that has not been read."""
    is_text = isinstance(part, ConstantVariable) and isinstance(part.source, Computed) and part.python_type is str
    return (is_text and is_lazy(part)) or (isinstance(part, NumberVariable) and part.cls in (int, float))


def formatted(tx: Tracer, number: VariableTracker, spec: str) -> VariableTracker | None:
    """Returns `format(number, spec)` of a number or text; None if a constant is needed."""
    if isinstance(number, LazyTextVariable):
        return None if spec else number
    if not varies(number) or spec.endswith(_PARTIAL_FORMATS):
        return lazy_text(tx, format, number, spec)
    if not spec:
        return text_of(tx, str, number)
    return call_computed(tx, format, [number, ConstantVariable(spec)], {})


def text_of(tx: Tracer, function: Callable[[Any], str], obj: VariableTracker) -> VariableTracker | None:
    """Returns `str(obj)` or `repr(obj)` of a number or a sequence of numbers; None if a constant is needed."""
    if isinstance(obj, LazyTextVariable) and function is str:
        return obj
    if isinstance(obj, SequenceVariable) and obj.cls in _SEQUENCES:
        if not any(map(varies, obj.items)) or not all(map(_is_number, obj.items)):
            return None
        return call_computed(tx, functools.partial(_text_of_sequence, function, obj.cls), [obj], {})
    if not varies(obj):
        return None
    if obj.python_type is str and function is str:
        return obj
    return call_computed(tx, function, [obj], {})


def _text_of_sequence(function: Callable[[Any], str], cls: Callable[[Any], Any], items: Sequence[Any]) -> str:
    return function(cls(items))


def joined(tx: Tracer, between: str, parts: Sequence[VariableTracker]) -> VariableTracker | None:
    """Returns `between.join(parts)`; None if constants are needed."""
    unread = next((part for part in parts if isinstance(part, LazyTextVariable)), None)
    if unread is not None and all(map(_is_text, parts)):
        return LazyTextVariable(between.join, (TupleVariable([*parts]),), _is_made_of_texts, unread.refuse)
    if not any(map(varies, parts)) or not all(_is_text(part) for part in parts):
        return None
    return call_computed(tx, between.join, [TupleVariable([*parts])], {})


def format_text(
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
    if any(spec and (spec.endswith(_PARTIAL_FORMATS) or "{" in spec) for _, _, spec, _ in fields):
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


def _is_made_of_texts(tx: Tracer) -> None:
    """Refuses nothing: each part of a joined text refuses for itself."""


def _is_text(part: VariableTracker) -> bool:
    return isinstance(part, ConstantVariable) and part.python_type is str


def _is_number(part: VariableTracker) -> bool:
    return isinstance(part, NumberVariable | ConstantVariable) and part.python_type in (int, float)
