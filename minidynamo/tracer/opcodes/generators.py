"""Owns the opcodes of inlined generators: making a generator, yielding, and `yield from`.

A frame that is itself a generator cannot be cut and runs eagerly. The effects of `send` and `throw` on a suspended
frame are not here (`tracer/frames/generators.py`)."""

from __future__ import annotations

import types

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.frames.generators import GeneratorVariable, send
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.lazy.lazy_value import is_none
from minidynamo.tracer.lazy.unpacking import next_lazy
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.variables.base import ConstantVariable, VariableTracker


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
