"""Owns the opcodes of generators that are inlined: making one, and yielding.

A frame that is a generator itself cannot be cut and runs as written.
"""

from __future__ import annotations

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.variables.constants import ConstantVariable


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, instruction: Instruction) -> None:
    if len(frame.chain.frames) == 1:
        frame.tx.break_graph("MD209", f"{frame.code.co_name} is a generator", why="It keeps a frame of its own.")
    frame.yielded = ConstantVariable(None)  # suspends; the caller of the function gets the generator


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, instruction: Instruction) -> None:
    frame.yielded = frame.pop()
