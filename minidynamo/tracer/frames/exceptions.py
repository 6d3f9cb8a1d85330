"""Owns the trackers of exceptions that are raised during tracing, and their messages.

Knows no opcode and finds no handler: `Frame` searches its own code, and `tracer/capture/frame.py` ends the trace if no
frame has a handler. `tracer/handlers/exceptions.py` implements the attributes and methods of exceptions.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import types
from collections.abc import Callable
from typing import TypeVar

from minidynamo.tracer.frames.interpreter import Raised
from minidynamo.tracer.records.constants import NotConstant, from_constant
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import ConstantVariable, LazyTextVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ExceptionVariable

T = TypeVar("T")

HAS_OWN_FIELDS = "Exceptions that keep more than their arguments are made by Python itself."

# Built-in classes whose complete state is in `args`, or follows from `args`.
_FROM_ARGS = (StopIteration, AttributeError, NameError, UnboundLocalError)
EXCEPTIONS: tuple[type[BaseException], ...] = tuple(
    value
    for name, value in vars(builtins).items()
    if isinstance(value, type)
    and value.__name__ == name  # OSError has aliases
    and issubclass(value, BaseException)
    and (value.__basicsize__ == BaseException.__basicsize__ or value in _FROM_ARGS)
)


def can_make(cls: type) -> bool:
    """Returns whether exceptions of this class can be created during tracing."""
    if isinstance(cls.__getattribute__, types.FunctionType):
        return False
    return all(base in EXCEPTIONS for base in cls.__mro__[:-1] if base.__module__ == "builtins")


def native_base(cls: type) -> type[BaseException]:
    """Returns the built-in class that creates instances of this class: the largest base."""
    natives = [base for base in EXCEPTIONS if base in cls.__mro__]
    return max(natives, key=lambda base: (base.__basicsize__, len(base.__mro__)))


def description(error: BaseException | ExceptionVariable) -> str:
    """Returns the text for the user: the class of an exception and the first line of its message."""
    if isinstance(error, ExceptionVariable):
        message, name = _message(error.args), error.cls.__name__
    else:
        message, name = str(error), type(error).__name__
    line = message.partition("\n")[0]
    return f"{name}: {line}" if line else name


def _message(args: TupleVariable | None) -> str:
    """Returns the message for some arguments; "" if an argument is lazy or has no known text."""
    items = [] if args is None else args.items.lazy()
    known = [item for item in items if not isinstance(item, LazyTextVariable)]
    plain = [item for item in known if isinstance(item, ConstantVariable | NumberVariable)]
    return ", ".join([str(item.unguarded_value) for item in plain]) if len(plain) == len(items) else ""


def tracked(error: BaseException, effects: SideEffects, *, exact: bool) -> ExceptionVariable:
    """Returns the tracker of the exception that Python would raise; `exact`: with the same message and attributes."""
    exception = ExceptionVariable(None, type(error))
    if not exact:
        return exception
    with contextlib.suppress(NotConstant):
        attributes = {name: from_constant(value) for name, value in vars(error).items()}
        args = from_constant(error.args)
        assert isinstance(args, TupleVariable)
        exception.args = args
        for name, value in attributes.items():
            effects.set_attr(exception, name, value)
        if formats_itself(type(error)):
            exception.text = str(error)
    for name in own_fields(type(error)):
        with contextlib.suppress(NotConstant, AttributeError):
            exception.fields[name] = from_constant(getattr(error, name))
    return exception


def own_fields(cls: type) -> frozenset[str]:
    """Returns the names of the fields, besides `args`, that built-in base classes outside of `EXCEPTIONS` add."""
    names = (name for base in cls.__mro__ if _adds_fields(base) for name in vars(base))
    return frozenset(
        name
        for name in names
        if inspect.ismemberdescriptor(found := inspect.getattr_static(cls, name)) or inspect.isgetsetdescriptor(found)
    )


def formats_itself(cls: type[BaseException]) -> bool:
    """Returns whether a built-in class formats the text of the exception from more than its arguments."""
    return _adds_fields(next(base for base in cls.__mro__ if "__str__" in vars(base)))


def _adds_fields(cls: type) -> bool:
    return cls.__module__ == "builtins" and issubclass(cls, BaseException) and cls not in EXCEPTIONS


def exception_with(cls: type[BaseException], *args: VariableTracker) -> ExceptionVariable:
    """Returns the tracker of an exception with these arguments."""
    return ExceptionVariable(None, cls, args=TupleVariable(list(args)))


def without_message(cls: type[BaseException]) -> ExceptionVariable:
    """Returns the tracker of an exception with an unknown message."""
    return ExceptionVariable(None, cls)


def generator_stop_error(inner: ExceptionVariable) -> ExceptionVariable:
    """Returns the RuntimeError that replaces a StopIteration leaving a generator, where it would look like the end."""
    error = exception_with(RuntimeError, ConstantVariable("generator raised StopIteration"))
    error.cause = error.context = inner
    error.suppresses_context = True
    return error


def same_message(error: BaseException) -> bool:
    """Returns whether a function's error has the same message as the error of its operator or method."""
    return not isinstance(error, TypeError)


def catch_raised(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    act: Callable[[], T],
    handle: Callable[[ExceptionVariable], object],
) -> T | None:
    """Returns the result of `act`; None if the program raises an exception of class `kind`, which is passed to
    `handle`."""
    try:
        return act()
    except Raised as raised:
        if not issubclass(raised.exception.cls, kind):
            raise
        handle(raised.exception)
        return None
