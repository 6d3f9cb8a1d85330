"""Owns raising while tracing: the exception that unwinds the tracer to the handler, and how exceptions are chained.

It knows no opcode and finds no handler: `Frame` looks for one in its own code, `tracer/capture/frame.py` ends the trace
when there is none. What exceptions can do is in `tracer/handlers/exceptions.py`.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import types
from collections.abc import Callable
from typing import TypeVar

from minidynamo.errors import Diagnostic
from minidynamo.tracer.lazy.lazy_containers import lazy_items
from minidynamo.tracer.records.constants import NotConstant, from_constant
from minidynamo.tracer.records.copies import SHORTER_LIST, anew
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.numbers import NumberVariable

T = TypeVar("T")

# Built-in classes all of whose state is in `args`, or follows from it.
_FROM_ARGS = (StopIteration, AttributeError, NameError, UnboundLocalError)
EXCEPTIONS: tuple[type[BaseException], ...] = tuple(
    value
    for name, value in vars(builtins).items()
    if isinstance(value, type)
    and value.__name__ == name  # OSError has other names, too
    and issubclass(value, BaseException)
    and (value.__basicsize__ == BaseException.__basicsize__ or value in _FROM_ARGS)
)


class Raised(Exception):
    """The program raises `exception`, and a frame that is traced may handle it.

    `diagnostic` is what the user is told when none does; `in_callee`: it was raised below the root frame.
    """

    def __init__(self, exception: ExceptionVariable, diagnostic: Diagnostic, *, in_callee: bool) -> None:
        super().__init__(diagnostic.what)
        self.exception = exception
        self.diagnostic = diagnostic
        self.in_callee = in_callee

    def of(self, exception: ExceptionVariable) -> Raised:
        """The same for the exception that takes this one's place."""
        exception.is_raised = True
        return Raised(exception, self.diagnostic, in_callee=self.in_callee)


def can_make(cls: type) -> bool:
    """Whether exceptions of this class can be made while tracing."""
    if isinstance(cls.__getattribute__, types.FunctionType):
        return False
    return all(base in EXCEPTIONS for base in cls.__mro__[:-1] if base.__module__ == "builtins")


def made_natively(cls: type[BaseException], *args: object, **kwargs: object) -> BaseException:
    """An exception of a class that leaves it to a built-in one to fill its instances."""
    return cls(*args, **kwargs)


def native_base(cls: type) -> type[BaseException]:
    """The built-in class that makes exceptions of this class: the largest of its bases."""
    natives = [base for base in EXCEPTIONS if base in cls.__mro__]
    return max(natives, key=lambda base: (base.__basicsize__, len(base.__mro__)))


def description(error: BaseException | ExceptionVariable) -> str:
    """What the user is told of an exception: its class and the first line of what it says."""
    if isinstance(error, ExceptionVariable):
        words, name = _words(error.args), error.cls.__name__
    else:
        words, name = str(error), type(error).__name__
    message = words.partition("\n")[0]
    return f"{name}: {message}" if message else name


def _words(args: TupleVariable | None) -> str:
    """What arguments say, as far as that is known without reading what has only been moved."""
    items = [] if args is None else lazy_items(args.items)
    plain = [item for item in items if isinstance(item, ConstantVariable | NumberVariable)]
    return ", ".join([str(item.here) for item in plain]) if len(plain) == len(items) else ""


def tracked(error: BaseException, effects: SideEffects, *, exact: bool) -> ExceptionVariable:
    """The tracker of what Python would raise here; `exact`: it would also say the same, and keep the same."""
    exception = ExceptionVariable(None, type(error))
    if not exact:
        return exception
    words = error.args if error.__traceback__ is not None else map(_said_anew, error.args)
    with contextlib.suppress(NotConstant):
        attributes = {name: from_constant(value) for name, value in vars(error).items()}
        args = from_constant(tuple(words))
        assert isinstance(args, TupleVariable)
        exception.args = args
        for name, value in attributes.items():
            effects.set_attr(exception, name, value)
        if says_itself(type(error)):
            exception.text = str(error)
    for name in own_fields(type(error)):
        with contextlib.suppress(NotConstant, AttributeError):
            exception.fields[name] = from_constant(getattr(error, name))
    return exception


def own_fields(cls: type) -> frozenset[str]:
    """The names of what the built-in classes below `cls` keep beside the arguments, all but those in `EXCEPTIONS`."""
    names = (name for base in cls.__mro__ if _keeps_more(base) for name in vars(base))
    return frozenset(
        name
        for name in names
        if inspect.ismemberdescriptor(found := inspect.getattr_static(cls, name)) or inspect.isgetsetdescriptor(found)
    )


def says_itself(cls: type[BaseException]) -> bool:
    """Whether the text of such an exception is made by a built-in class, of more than the arguments."""
    return _keeps_more(next(base for base in cls.__mro__ if "__str__" in vars(base)))


def _keeps_more(cls: type) -> bool:
    return cls.__module__ == "builtins" and issubclass(cls, BaseException) and cls not in EXCEPTIONS


def _said_anew(word: object) -> object:
    """What an error that nobody has raised says in words written here: Python makes a text for each error."""
    return anew(word) if type(word) is str and word is not SHORTER_LIST else word


def made(cls: type[BaseException], *args: VariableTracker) -> ExceptionVariable:
    """The tracker of what Python would raise here, whose arguments are known."""
    return ExceptionVariable(None, cls, args=TupleVariable(list(args)))


def unsaid(cls: type[BaseException]) -> ExceptionVariable:
    """The tracker of what Python would raise here, in words that are not known."""
    return ExceptionVariable(None, cls)


def left_generator(inner: ExceptionVariable) -> ExceptionVariable:
    """What comes out of a generator for a StopIteration, which would be taken for its end."""
    error = made(RuntimeError, ConstantVariable(anew("generator raised StopIteration")))
    error.cause = error.context = inner
    error.suppresses_context = True
    return error


def set_context(exception: ExceptionVariable, handled: VariableTracker | None) -> None:
    """Python links a raised exception to the one that is being handled, and keeps that chain free of circles."""
    if handled is None or handled is exception:
        return
    link: VariableTracker | None = handled
    while isinstance(link, ExceptionVariable):
        if link.context is exception:
            link.context = None
        link = link.context
    exception.context = handled


def says(error: BaseException) -> bool:
    """Whether the message of an error that a function raised is also that of the operator or method it stands for."""
    return not isinstance(error, TypeError)


def caught(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    act: Callable[[], T],
    handle: Callable[[ExceptionVariable], object],
) -> T | None:
    """What `act` gives; None when the program raises an exception of class `kind` in it, which `handle` is told."""
    try:
        return act()
    except Raised as raised:
        if not issubclass(raised.exception.cls, kind):
            raise
        handle(raised.exception)
        return None
