"""Owns the opcodes of `with`, `raise` and `assert` on the way on which nothing is raised.

Entering a try region takes no instruction; what raises does so natively, behind a graph break inside the region.
"""

from __future__ import annotations

from minidynamo.bytecode.instructions import Instruction
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    leave: VariableTracker
    if isinstance(manager, ContextVariable):
        leave = ContextExitVariable(manager)
    else:
        leave = frame.tx.getattr(manager, "__exit__")
    entered = frame.tx.call_method(manager, "__enter__")
    frame.push(leave)
    frame.push(entered)


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    frame.tx.break_graph(
        "MD202",
        "the program raises an exception here",
        why="Exceptions are raised by Python itself, so that handlers and tracebacks are as written.",
    )
