"""Owns the opcodes that choose the next instruction: jumps, loops, return, the yields of inlined generators, and the
tests of the match statement on its subject.

A tensor as condition breaks the graph in `tx.truth`, unless one branch only raises
(`tracer/frames/runtime_asserts.py`). Comparisons are not here (`operators.py`), nor are the effects of `send` and
`throw` on a suspended frame (`tracer/frames/generators.py`). A frame that is itself a generator cannot be cut and runs
eagerly. Class and mapping patterns are polyfills, which are traced, because the attributes and methods that they read
may be the user's.
"""

from __future__ import annotations

import collections.abc
import types
from typing import Any

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.frames.generators import GeneratorVariable, send
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.frames.runtime_asserts import assert_truth
from minidynamo.tracer.lazy.lazy_value import is_none, next_lazy, truth
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.objects import ClassVariable


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.target)


def _jump_if(*names: str, expected: bool) -> None:
    @opcode(*names)
    def pop_jump(frame: Frame, instruction: Instruction) -> None:
        condition = frame.pop_lazy()
        known = assert_truth(frame, condition, instruction, expected)
        if (truth(frame.tx, condition) if known is None else known) is expected:
            frame.jump(instruction.target)


_jump_if("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", expected=True)
_jump_if("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", expected=False)


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE")
def pop_jump_if_none(frame: Frame, instruction: Instruction) -> None:
    if is_none(frame.tx, frame.pop_lazy()):
        frame.jump(instruction.target)


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE")
def pop_jump_if_not_none(frame: Frame, instruction: Instruction) -> None:
    if not is_none(frame.tx, frame.pop_lazy()):
        frame.jump(instruction.target)


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(frame: Frame, instruction: Instruction) -> None:
    if frame.tx.truth(frame.peek()):
        frame.jump(instruction.target)
    else:
        frame.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(frame: Frame, instruction: Instruction) -> None:
    if frame.tx.truth(frame.peek()):
        frame.pop()
    else:
        frame.jump(instruction.target)


@opcode("GET_ITER")
def get_iter(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(iter, [frame.pop()]))


@opcode("FOR_ITER")
def for_iter(frame: Frame, instruction: Instruction) -> None:
    item = next_lazy(frame.tx, frame.peek())
    if item is None:
        frame.pop()
        frame.jump(instruction.target)
    else:
        frame.push(item)


@opcode("RETURN_VALUE")
def return_value(frame: Frame, instruction: Instruction) -> None:
    frame.result = frame.pop_lazy()


@opcode("RETURN_CONST")
def return_const(frame: Frame, instruction: Instruction) -> None:
    frame.result = from_constant(instruction.argval, literal=True)


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, instruction: Instruction) -> None:
    if len(frame.tx.frames) == 1:
        frame.tx.break_graph("MD209", f"{frame.code.co_name} is a generator", why="It keeps a frame of its own.")
    frame.yielded = ConstantVariable(None)  # suspends; the caller of the function gets the generator


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, instruction: Instruction) -> None:
    frame.yielded = frame.pop_lazy()


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, instruction: Instruction) -> None:
    if frame.peek().python_type is not types.GeneratorType:
        frame.push(frame.tx.call(iter, [frame.pop()]))


@opcode("SEND")
def send_value(frame: Frame, instruction: Instruction) -> None:
    value, iterator = frame.pop_lazy(), frame.peek()
    item, returned = _send(frame, iterator, value)
    if item is not None:
        frame.push(item)
        return
    frame.end_delegation(instruction, returned)


def _send(
    frame: Frame, iterator: VariableTracker, value: VariableTracker
) -> tuple[VariableTracker | None, VariableTracker]:
    """Returns the next item, or None with the iterator's return value."""
    nothing = ConstantVariable(None)
    if isinstance(iterator, GeneratorVariable):
        item = send(frame.tx, iterator, value)
        return item, iterator.returned or nothing
    if is_none(frame.tx, value):
        return next_lazy(frame.tx, iterator), nothing
    return frame.tx.call_method(iterator, "send", [value], lazy=True), nothing


@opcode("END_SEND")
def end_send(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop_lazy()
    frame.stack[-1] = value


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
        has_names = hasattr(cls, "__match_args__")
        matches_itself = matches_itself and not has_names
        names = cls.__match_args__ if has_names else ()
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
