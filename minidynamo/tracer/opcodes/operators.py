"""Owns the opcodes that compute: operators, comparisons, attributes and subscripts, each as a call.

The meaning of an operator is not here (`tx.call`, `tx.getattr`)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from minidynamo.bytecode.instructions import NULL_ABOVE_CALLABLE, Instruction
from minidynamo.tracer.attributes import read_lazy, write_attribute
from minidynamo.tracer.frames.interpreter import NULL, Frame
from minidynamo.tracer.frames.runtime_asserts import assert_truth
from minidynamo.tracer.lazy.lazy_value import is_none, truth
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import slice_of
from minidynamo.tracer.records.operator_table import ARITHMETIC, AUGMENTED, BITWISE, COMPARISONS
from minidynamo.variables.base import ConstantVariable, VariableTracker, is_none_constant
from minidynamo.variables.tensors import ItemVariable

BINARY = ARITHMETIC | BITWISE | AUGMENTED


@opcode("BINARY_OP")
def binary_op(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(BINARY[instruction.argval], frame.pop_many(2)))


def _unary(name: str, function: Callable[..., Any]) -> None:
    @opcode(name)
    def unary(frame: Frame, instruction: Instruction) -> None:
        frame.push(frame.tx.call(function, [frame.pop()]))


_unary("UNARY_NEGATIVE", operator.neg)
_unary("UNARY_POSITIVE", operator.pos)
_unary("UNARY_INVERT", operator.invert)


@opcode("UNARY_NOT")
def unary_not(frame: Frame, instruction: Instruction) -> None:
    operand = frame.pop_lazy()
    if isinstance(operand, ItemVariable):
        frame.push(frame.tx.call(operator.not_, [operand]))
    else:
        frame.push(ConstantVariable(not truth(frame.tx, operand)))


@opcode("TO_BOOL")
def to_bool(frame: Frame, instruction: Instruction) -> None:
    condition, jump = frame.pop_lazy(), frame.instructions[instruction.index + 1]
    if isinstance(condition, ItemVariable) and jump.opname == "UNARY_NOT":
        frame.push(condition)  # the graph computes `not`
        return
    known = assert_truth(frame, condition, jump, "TRUE" in jump.opname) if "_IF_" in jump.opname else None
    frame.push(ConstantVariable(truth(frame.tx, condition) if known is None else known))


@opcode("COMPARE_OP")
def compare_op(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(COMPARISONS[instruction.argval], frame.pop_many(2)))


@opcode("IS_OP")
def is_op(frame: Frame, instruction: Instruction) -> None:
    values = frame.pop_many_lazy(2)
    if any(map(is_none_constant, values)):
        holds = is_none(frame.tx, values[0] if is_none_constant(values[1]) else values[1])
        frame.push(ConstantVariable(holds is not instruction.flag))
        return
    function = operator.is_not if instruction.flag else operator.is_
    frame.push(frame.tx.call(function, values))


@opcode("CONTAINS_OP")
def contains_op(frame: Frame, instruction: Instruction) -> None:
    item, container = frame.pop_many(2)
    contains = frame.tx.truth(frame.tx.call(operator.contains, [container, item]))
    frame.push(ConstantVariable(contains is not instruction.flag))


# Subscripts


@opcode("BUILD_SLICE")
def build_slice(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.argval)
    frame.push(slice_of(*[*parts, ConstantVariable(None)][:3]))


@opcode("BINARY_SUBSCR")
def binary_subscr(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.call(operator.getitem, frame.pop_many(2), lazy=True))


@opcode("STORE_SUBSCR")
def store_subscr(frame: Frame, instruction: Instruction) -> None:
    value, container, key = frame.pop_many_lazy(3)
    frame.tx.call(operator.setitem, [container, key, value])


@opcode("DELETE_SUBSCR")
def delete_subscr(frame: Frame, instruction: Instruction) -> None:
    frame.tx.call(operator.delitem, frame.pop_many(2))


@opcode("BINARY_SLICE")
def binary_slice(frame: Frame, instruction: Instruction) -> None:
    container, start, stop = frame.pop_many(3)
    frame.push(frame.tx.call(operator.getitem, [container, slice_of(start, stop, ConstantVariable(None))]))


@opcode("STORE_SLICE")
def store_slice(frame: Frame, instruction: Instruction) -> None:
    value, container, start, stop = frame.pop_many(4)
    frame.tx.call(operator.setitem, [container, slice_of(start, stop, ConstantVariable(None)), value])


# Attributes


def push_callable(frame: Frame, function: VariableTracker) -> None:
    """Pushes a callable with its NULL, in the order that CALL of the running Python expects."""
    pair = (function, NULL) if NULL_ABOVE_CALLABLE else (NULL, function)
    frame.stack.extend(pair)


@opcode("LOAD_ATTR", "LOAD_METHOD")
def load_attr(frame: Frame, instruction: Instruction) -> None:
    value = read_lazy(frame.tx, frame.pop(), instruction.argval)
    if instruction.method_form:
        push_callable(frame, value)
    else:
        frame.push(value)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(frame: Frame, instruction: Instruction) -> None:
    function, cls, receiver = frame.pop_many(3)
    value = frame.tx.getattr(frame.tx.call(function, [cls, receiver]), instruction.argval)
    if instruction.method_form:
        push_callable(frame, value)
    else:
        frame.push(value)


@opcode("STORE_ATTR")
def store_attr(frame: Frame, instruction: Instruction) -> None:
    obj, value = frame.pop(), frame.pop_lazy()
    write_attribute(frame.tx, obj, instruction.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame: Frame, instruction: Instruction) -> None:
    frame.tx.call(delattr, [frame.pop(), ConstantVariable(instruction.argval)])
