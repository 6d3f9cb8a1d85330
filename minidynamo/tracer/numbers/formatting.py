"""Owns texts that Python makes of numbers that differ from call to call: `f"step {n}"`.

What such a text says is only guarded when something depends on it. One that is printed, stored or returned is made anew
at each call, before the graph runs.
"""

from __future__ import annotations

import functools
import operator
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant
from minidynamo.tracer.numbers.arithmetic import computed_text, is_lazy
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.constants import as_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable

# Presentations of numbers that some numbers do not have (a character), or that depend on settings of the process.
_NOT_FOR_ALL = ("c", "n")
_NOT_FOR_ALL_PERCENT = re.compile(r"%[-#0 +\d.]*[c*]")
# Whose texts are those of their items, one after the other.
_SEQUENCES = (list, tuple, torch.Size)


def varies(part: VariableTracker) -> bool:
    """Whether it is a number, or a text made of one, whose value nothing depends on so far."""
    is_text = isinstance(part, ConstantVariable) and isinstance(part.source, Computed) and part.python_type is str
    return (is_text and is_lazy(part)) or (isinstance(part, NumberVariable) and part.cls in (int, float))


def formatted(tx: Tracer, number: VariableTracker, how: str) -> VariableTracker | None:
    """`format(number, how)` of a number or text; None where it takes a constant."""
    if not varies(number) or how.endswith(_NOT_FOR_ALL):
        return None
    if not how:
        return written(tx, str, number)
    return _made(tx, format, "{0}({1}, {2})", number, ConstantVariable(how))


def written(tx: Tracer, function: Callable[[Any], str], obj: VariableTracker) -> VariableTracker | None:
    """`str(obj)` or `repr(obj)` of a number or a sequence of them; None where it takes a constant."""
    if isinstance(obj, SequenceVariable) and obj.cls in _SEQUENCES:
        if not any(map(varies, obj.items)) or not all(map(_is_number, obj.items)):
            return None
        listed = "".join(f"{{{place}}}, " for place in range(1, len(obj.items) + 1))
        text_of = functools.partial(_text_of, function, obj.cls)
        return _made(tx, text_of, f"{{0}}(({listed}))", *obj.items, takes_one=True)
    if not varies(obj):
        return None
    if obj.python_type is str and function is str:
        return obj
    return _made(tx, function, "{0}({1})", obj)


def _text_of(function: Callable[[Any], str], cls: Callable[[Any], Any], items: Sequence[Any]) -> str:
    return function(cls(items))


def joined(tx: Tracer, between: str, parts: Sequence[VariableTracker]) -> VariableTracker | None:
    """`between.join(parts)`; None where it takes constants."""
    if not any(map(varies, parts)) or not all(_is_text(part) for part in parts):
        return None
    listed = "".join(f"{{{place}}}, " for place in range(1, len(parts) + 1))
    return _made(tx, between.join, f"{{0}}(({listed}))", *parts, takes_one=True)


def filled(
    tx: Tracer, text: str, args: Sequence[VariableTracker], named: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """`text.format(*args, **named)`; None where it takes constants."""
    given = [*args, *named.values()]
    if not any(map(varies, given)) or not all(_is_text(part) or _is_number(part) for part in given):
        return None
    try:
        fields = [*string.Formatter().parse(text)]
    except ValueError:
        return None
    if any(how and (how.endswith(_NOT_FOR_ALL) or "{" in how) for _, _, how, _ in fields):
        return None
    names = ["", *[""] * len(args), *(f"{name}=" for name in named)]
    listed = ", ".join(f"{name}{{{place}}}" for place, name in enumerate(names) if place)
    return _made(tx, text.format, f"{{0}}({listed})", *given, names=tuple(named))


def combined(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """`left + right` or `left % right` for texts; None where it takes constants, or is something else."""
    if not _is_text(left) or function not in (operator.add, operator.mod):
        return None
    if function is operator.add:
        return joined(tx, "", [left, right])
    given = [*right.items] if isinstance(right, TupleVariable) else [right]
    if not any(map(varies, given)) or not all(_is_text(part) or _is_number(part) for part in given):
        return None
    text = as_constant(left)
    if _NOT_FOR_ALL_PERCENT.search(text):
        return None
    listed = "".join(f"{{{place}}}, " for place in range(1, len(given) + 1))
    return _made(tx, text.__mod__, f"{{0}}(({listed}))", *given, takes_one=True)


def _is_text(part: VariableTracker) -> bool:
    return isinstance(part, ConstantVariable) and part.python_type is str


def _is_number(part: VariableTracker) -> bool:
    return isinstance(part, NumberVariable | ConstantVariable) and part.python_type in (int, float)


def _made(
    tx: Tracer,
    function: Callable[..., str],
    template: str,
    *parts: VariableTracker,
    takes_one: bool = False,
    names: Sequence[str] = (),
) -> VariableTracker | None:
    """What `function` gives for the parts (a tuple of them if it `takes_one`; the last ones by `names`), a call that
    `template` spells; None where it raises, or the text that computes it has grown too long."""
    here = [part.here for part in parts if isinstance(part, NumberVariable | ConstantVariable)]
    args, named = here[: len(here) - len(names)], dict(zip(names, here[len(here) - len(names) :]))
    try:
        made = function(tuple(here)) if takes_one else function(*args, **named)
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        return None
    source = computed_text(template, Constant(function, getattr(function, "__name__", "text")), *parts)
    if source is None:
        return None
    read = tx.graph.guard_when_asked(source, GuardKind.EQUALS, made)
    return ConstantVariable(made, source=source, read_anew=True, on_read=read)
