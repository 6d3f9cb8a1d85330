"""Owns the opcodes that call and the opcodes that make functions.

Binding of arguments is not here (`tracer/calls/call.py`)."""

from __future__ import annotations

from minidynamo.bytecode.instructions import NULL_ABOVE_CALLABLE, Instruction
from minidynamo.tracer.calls.call import call
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.frames.runtime_asserts import tensor_to_assert
from minidynamo.tracer.lazy.lazy_value import unpack_lazy, unpack_mapping
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.traced_frame import Null
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import CellVariable, NestedFunctionVariable
from minidynamo.variables.containers import TupleVariable


def pop_callable(frame: Frame) -> tuple[VariableTracker, list[VariableTracker]]:
    """Pops the callable below the arguments, and its `self` if that was pushed separately."""
    upper, lower = (v if isinstance(v, Null) else v.realize() for v in (frame.stack.pop(), frame.stack.pop()))
    function, receiver = (lower, upper) if NULL_ABOVE_CALLABLE or not isinstance(lower, Null) else (upper, lower)
    assert isinstance(function, VariableTracker)
    frame.callee = function.realize()
    return frame.callee, [] if isinstance(receiver, Null) else [receiver.realize()]


def callable_position(frame: Frame, instruction: Instruction) -> int | None:
    """Returns the stack position of a call's callable; None if its `self` is on the stack too."""
    if instruction.opname in ("CALL", "CALL_KW"):
        count = instruction.arg or 0
    elif instruction.opname == "CALL_FUNCTION_EX":
        count = 1 + ((instruction.arg or 0) & 1)
    else:
        return None
    count += instruction.opname == "CALL_KW"
    upper, lower = len(frame.stack) - count - 1, len(frame.stack) - count - 2
    null, function = (upper, lower) if NULL_ABOVE_CALLABLE else (lower, upper)
    return function if isinstance(frame.stack[null], Null) else None


def _call(frame: Frame, instruction: Instruction, count: int, names: tuple[str, ...]) -> None:
    values = frame.pop_many_lazy(count)
    function, receiver = pop_callable(frame)
    positional = count - len(names)
    kwargs = dict(zip(names, values[positional:]))
    args = [*receiver, *values[:positional]]
    checked = None if kwargs else tensor_to_assert(frame, instruction, function, args)
    frame.push(call(frame.tx, function, args, kwargs) if checked is None else checked)


@opcode("KW_NAMES")
def kw_names(frame: Frame, instruction: Instruction) -> None:
    frame.keyword_names = instruction.argval


@opcode("CALL")
def call_positional(frame: Frame, instruction: Instruction) -> None:
    names, frame.keyword_names = frame.keyword_names, ()
    _call(frame, instruction, instruction.argval, names)


@opcode("CALL_KW")
def call_kw(frame: Frame, instruction: Instruction) -> None:
    _call(frame, instruction, instruction.argval, as_constant(frame.pop()))


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, instruction: Instruction) -> None:
    kwargs: dict[str, VariableTracker] = {}
    if instruction.argval & 1:
        for key, value in unpack_mapping(frame.tx, frame.pop()).items():
            if type(key.token) is not str:
                frame.tx.raises(TypeError("keywords must be strings"))
            kwargs[str(key.token)] = value
    args = unpack_lazy(frame.tx, frame.pop())
    function, receiver = pop_callable(frame)
    frame.push(call(frame.tx, function, [*receiver, *args], kwargs))


# Making functions

_DEFAULTS, _KWDEFAULTS, _ANNOTATIONS, _CLOSURE = 1, 2, 4, 8


def _set_attribute(function: NestedFunctionVariable, kind: int, value: VariableTracker) -> None:
    if kind == _DEFAULTS:
        function.defaults = value
    elif kind == _KWDEFAULTS:
        function.kwdefaults = value
    elif kind == _ANNOTATIONS:
        function.annotations = value
    else:
        assert isinstance(value, TupleVariable)
        function.closure = tuple(cell for cell in value.items if isinstance(cell, CellVariable))


@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, instruction: Instruction) -> None:
    code = frame.pop()
    assert isinstance(code, ConstantVariable)
    function = NestedFunctionVariable(code.value, frame.namespace, code.value.co_qualname)
    for kind in (_CLOSURE, _ANNOTATIONS, _KWDEFAULTS, _DEFAULTS):
        # Since 3.13 the instruction has no argument and SET_FUNCTION_ATTRIBUTE follows.
        if (instruction.arg or 0) & kind:
            _set_attribute(function, kind, frame.pop())
    frame.push(function)


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame: Frame, instruction: Instruction) -> None:
    value, function = frame.pop_many(2)
    if not isinstance(function, NestedFunctionVariable):  # the graph ended between the parts of a definition
        what, why = "a function gets its defaults or its closure", "Python has made the function already."
        frame.tx.break_graph("MD203", what, why=why)
    _set_attribute(function, instruction.argval, value)
    frame.push(function)
