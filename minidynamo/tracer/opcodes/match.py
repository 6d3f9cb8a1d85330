"""Owns the opcodes of the match statement: the tests of a pattern on its subject.

Class and mapping patterns are polyfills, which are traced, because the attributes and methods that they read may be the
user's. Comparisons, guards and bindings are not here, but ordinary opcodes."""

from __future__ import annotations

import collections.abc
from typing import Any

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.objects import ClassVariable

# Set for the classes (and their subclasses) whose only positional pattern is the subject itself: int, str, list, ...
_MATCHES_ITSELF = 1 << 22
_MISSING = object()


@opcode("GET_LEN")
def get_len(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(len, [frame.peek()]))


@opcode("MATCH_SEQUENCE")
def match_sequence(frame: Frame, instruction: Instruction) -> None:
    cls = frame.peek().python_type
    matches = issubclass(cls, collections.abc.Sequence) and not issubclass(cls, str | bytes | bytearray)
    frame.push(ConstantVariable(matches))


@opcode("MATCH_MAPPING")
def match_mapping(frame: Frame, instruction: Instruction) -> None:
    frame.push(ConstantVariable(issubclass(frame.peek().python_type, collections.abc.Mapping)))


@opcode("MATCH_KEYS")
def match_keys(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(values_of_keys, [frame.peek(2), frame.peek()]))


@opcode("MATCH_CLASS")
def match_class(frame: Frame, instruction: Instruction) -> None:
    subject, cls, keywords = frame.pop_many(3)
    if not isinstance(cls, ClassVariable):
        frame.tx.raises(TypeError("called match pattern must be a class"))
    itself = bool(cls.value.__flags__ & _MATCHES_ITSELF)
    extra = [keywords, ConstantVariable(instruction.argval), ConstantVariable(itself)]
    frame.push(frame.tx.call(attributes_of_class, [subject, cls, *extra]))


# Polyfills


def values_of_keys(subject: Any, keys: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns the values of all keys of a mapping pattern; None if a key is missing. No default is created."""
    values = []
    for key in keys:
        value = subject.get(key, _MISSING)
        if value is _MISSING:
            return None
        values.append(value)
    return tuple(values)


def attributes_of_class(
    subject: Any, cls: Any, keywords: tuple[str, ...], positional: int, matches_itself: bool
) -> tuple[Any, ...] | None:
    """Returns the values that the pattern `cls(...)` binds; None if the subject does not match."""
    if not isinstance(subject, cls):
        return None
    values = []
    names: tuple[str, ...] = ()
    if positional:
        own = hasattr(cls, "__match_args__")
        matches_itself = matches_itself and not own
        names = cls.__match_args__ if own else ()
        if type(names) is not tuple:
            raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {type(names).__name__})")
        allowed = 1 if matches_itself else len(names)
        if positional > allowed:
            plural = "" if allowed == 1 else "s"
            raise TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({positional} given)")
        if matches_itself:
            values.append(subject)
    seen: list[str] = []
    for name in names[:positional] + keywords:
        if name in seen:
            raise TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}")
        seen.append(name)
        value = getattr(subject, name, _MISSING)
        if value is _MISSING:
            return None
        values.append(value)
    return tuple(values)
