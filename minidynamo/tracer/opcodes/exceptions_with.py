"""Owns the opcodes of `with`, `raise`, `assert`, and of handlers: `except`, `finally`, and leaving `with` by an error.

Entering a try region has no instruction, and the search for a handler is not here but in the frame. An exception that
is unknown while tracing is raised natively, after a graph break inside the region."""

from __future__ import annotations

from minidynamo.bytecode.instructions import Instruction
from minidynamo.errors import an
from minidynamo.tracer.attributes import bind, class_of, guard_class_attribute, lookup_on_class
from minidynamo.tracer.frames.exceptions import generator_stop_error
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import ContextExitVariable, ContextVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ClassVariable, ExceptionVariable, TracebackVariable


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    if isinstance(manager, ContextVariable):
        leave: VariableTracker = ContextExitVariable(manager)
        entered = frame.tx.call_method(manager, "__enter__", lazy=True)
    else:
        enter = _special_method(frame, manager, "__enter__")
        leave = _special_method(frame, manager, "__exit__")
        entered = frame.tx.call(enter, lazy=True)
    frame.push(leave)
    frame.push(entered)


def _special_method(frame: Frame, manager: VariableTracker, name: str) -> VariableTracker:
    """Returns a method of the manager's class; Python ignores a method in the manager's own dictionary."""
    cls = manager.python_type
    found, owner = lookup_on_class(cls, name)
    if owner is None:
        message = f"{cls.__qualname__!r} object does not support the context manager protocol"
        frame.tx.raises(TypeError(message + " (missed __exit__ method)" * (name == "__exit__")), exact=True)
    guard_class_attribute(frame.tx, cls, owner, name, found)
    bound = bind(frame.tx, found, owner, manager, cls, name)
    assert bound is not None
    return bound


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instruction: Instruction) -> None:
    """Calls `__exit__`, which is on the stack below the offset, the exception handled before, and the exception."""
    leave, error = frame.peek(4), frame.peek()
    frame.push(frame.tx.call(leave, [class_of(frame.tx, error), error, TracebackVariable(error)]))


# Raising


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    values = frame.pop_many(instruction.argval)
    if not values:
        reraise(frame, frame.tx.handled)
    exception = _exception_to_raise(frame, values[0])
    if len(values) == 2:
        has_no_cause = isinstance(values[1], ConstantVariable) and values[1].value is None
        exception.cause = None if has_no_cause else _exception_to_raise(frame, values[1])
        exception.suppresses_context = True
    frame.tx.raises(exception)


def _exception_to_raise(frame: Frame, value: VariableTracker) -> ExceptionVariable:
    """Returns the exception to raise; a class is called first."""
    if isinstance(value, ClassVariable) and issubclass(value.value, BaseException):
        value = frame.tx.call(value)
    if not isinstance(value, ExceptionVariable):
        frame.tx.break_graph(
            "MD202",
            "the program raises an exception here",
            why=f"It is {an(value.python_type.__name__)} from outside of the trace, so Python itself raises it.",
        )
    return value


def reraise(frame: Frame, exception: object) -> None:
    if not isinstance(exception, ExceptionVariable):
        frame.tx.break_graph("MD202", "the program raises an exception here", why="It is handled outside the graph.")
    raise frame.tx.raised[exception].with_traceback(None)


# Handlers


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, instruction: Instruction) -> None:
    error = frame.pop()
    frame.push(frame.handled or ConstantVariable(None))
    frame.push(error)
    frame.handled = error


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, instruction: Instruction) -> None:
    before = frame.pop()
    frame.handled = before if isinstance(before, ExceptionVariable) else None


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, instruction: Instruction) -> None:
    classes, error = _classes(frame, frame.pop()), frame.peek()
    frame.push(ConstantVariable(any(cls in error.python_type.__mro__ for cls in classes)))


def _classes(frame: Frame, expected: VariableTracker) -> list[type]:
    classes: list[type] = []
    for item in expected.items if isinstance(expected, TupleVariable) else [expected]:
        if not isinstance(item, ClassVariable) or not issubclass(item.value, BaseException):
            message = "catching classes that do not inherit from BaseException is not allowed"
            frame.tx.raises(TypeError(message), exact=True)
        classes.append(item.value)
    return classes


@opcode("RERAISE")
def reraise_top(frame: Frame, instruction: Instruction) -> None:
    reraise(frame, frame.pop())


@opcode("CLEANUP_THROW")
def cleanup_throw(frame: Frame, instruction: Instruction) -> None:
    """Handles an exception that left the iterator of a `yield from`: the iterator's result, or an error."""
    error = frame.peek()
    if not issubclass(error.python_type, StopIteration):
        reraise(frame, error)
    del frame.stack[-3:]
    frame.push(ConstantVariable(None))
    frame.push(frame.tx.getattr(error, "value"))


def stop_iteration_error(frame: Frame) -> None:
    """Replaces a StopIteration that would leave a generator and look like its end."""
    error = frame.pop()
    assert isinstance(error, ExceptionVariable)
    if issubclass(error.cls, StopIteration):
        inner, error = error, generator_stop_error(error)
        frame.tx.raised[error] = frame.tx.raised[inner].of(error)
    frame.push(error)
