"""Owns the opcodes that choose the next instruction: jumps, loops, return.

A tensor as condition breaks the graph in `tx.truth`, unless one branch only raises
(`tracer/frames/runtime_asserts.py`). Comparisons are not here (`operators.py`)."""

from __future__ import annotations

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.frames.runtime_asserts import expected as expected_truth
from minidynamo.tracer.lazy.lazy_value import is_none, truth
from minidynamo.tracer.lazy.unpacking import next_lazy
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import from_constant


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.target)


def _jump_if(*names: str, expected: bool) -> None:
    @opcode(*names)
    def pop_jump(frame: Frame, instruction: Instruction) -> None:
        condition = frame.pop_lazy()
        known = expected_truth(frame, condition, instruction, expected)
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
    frame.result = from_constant(instruction.argval, lasting=True)
