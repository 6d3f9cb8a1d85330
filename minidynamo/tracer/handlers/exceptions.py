"""Owns exceptions as objects: construction, attributes, and text.

Raising and handling are in `tracer/frames/exceptions.py`. Uses of tracebacks break the graph, and so do uses of the
arguments or text of an exception of which only the class is known.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from minidynamo.errors import Diagnostic, counted
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer.attributes import class_of, lookup_on_class
from minidynamo.tracer.calls.construct import checked_class
from minidynamo.tracer.frames.exceptions import EXCEPTIONS, formats_itself, native_exception, own_fields
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_result
from minidynamo.tracer.records.fix_hints import MAKE_OUTSIDE
from minidynamo.tracer.records.side_effects import UNKNOWN
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ExceptionVariable, ObjectVariable, TracebackVariable

_CONSTRUCTORS = {id(cls.__new__): cls.__new__ for cls in EXCEPTIONS}
_HAS_OWN_FIELDS = "Exceptions that keep more than their arguments are made by Python itself."
# Attributes that depend on the position of the error in the running program.
_FILLED_BY_PYTHON = ("name", "obj")
_HANDLED_OUTSIDE = Result(Constant(sys.exception, "sys.exception"))


def _construct_handler(new: Callable[..., object]) -> registry.Handler:
    @registry.accepts_lazy("args")
    def make(tx: Tracer, cls: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        value = checked_class(tx, new, cls)
        exception = ExceptionVariable(None, value, args=TupleVariable([*args]))
        tx.frames[-1].forget_message(exception)
        return exception

    return make


for _new in _CONSTRUCTORS.values():
    registry.function(_new)(_construct_handler(_new))


def _made_by_python(cls: type[BaseException]) -> registry.Handler:
    """Returns a handler for a class with fields besides the arguments: Python makes the exception during capture."""

    def make(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        operands = [*args, *kwargs.values()]
        try:
            values = [as_constant(operand) for operand in operands]
        except NotConstant:
            tx.break_graph("MD211", f"a {cls.__name__} is made", why=_HAS_OWN_FIELDS, fix=MAKE_OUTSIDE)
        try:
            error = cls(*values[: len(args)], **dict(zip(kwargs, values[len(args) :])))
        except Exception as refused:
            tx.raises(refused, exact=True)

        def track(value: object) -> Any:
            return from_result(value, operands, values)

        exception = ExceptionVariable(None, type(error), args=track(error.args), made_by=(cls, [*args], kwargs))
        for name in own_fields(type(error)):
            with contextlib.suppress(NotConstant, AttributeError):
                exception.fields[name] = track(getattr(error, name))
        exception.text = str(error) if formats_itself(type(error)) else None
        tx.frames[-1].forget_message(exception)
        return exception

    return make


@registry.function(native_exception)
def _made_of_subclass(
    tx: Tracer, cls: ClassVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return _made_by_python(cls.value)(tx, *args, **kwargs)


def _group(cls: type[BaseExceptionGroup[Any]]) -> registry.Handler:
    def make(tx: Tracer, message: VariableTracker, exceptions: VariableTracker, /) -> VariableTracker:
        parts = [*exceptions.items] if isinstance(exceptions, SequenceVariable) else []
        classes = [part.cls for part in parts if isinstance(part, ExceptionVariable)]
        usual = all(issubclass(part, Exception) for part in classes)
        known = message.python_type is str and len(parts) == len(classes) > 0
        if not known or not isinstance(message, ConstantVariable) or (cls is ExceptionGroup and not usual):
            tx.break_graph("MD211", f"a {cls.__name__} is made", why=_HAS_OWN_FIELDS, fix=MAKE_OUTSIDE)
        if isinstance(exceptions, ListVariable):
            what = "the list of the exceptions in a group is changed or returned"
            why = "A group also refers to the list itself."
            where = tx.frames[-1].location
            tx.side_effects.record_stand_in(
                exceptions, Diagnostic("MD211", what, why=why, fix="pass a tuple", where=where)
            )
        group = ExceptionVariable(None, ExceptionGroup if usual else cls, args=TupleVariable([message, exceptions]))
        group.fields = {"message": message, "exceptions": TupleVariable([*parts])}
        group.text = f"{message.value} ({counted(len(parts), 'sub-exception')})"
        group.made_by = (cls, [message, exceptions], {})
        tx.frames[-1].forget_message(group)
        return group

    return make


@registry.accepts_lazy("args")
def _init(tx: Tracer, self: ExceptionVariable, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if kwargs:
        _break(tx, self, "a construction with keywords")
    self.args = TupleVariable([*args])
    tx.frames[-1].forget_message(self)
    return ConstantVariable(None)


def _break(tx: Tracer, exception: ExceptionVariable, what: str) -> None:
    name = exception.cls.__name__
    tx.break_graph("MD206", f"{what} of a {name} is used", why="Only Python knows it, after raising the exception.")


def _args(tx: Tracer, exception: ObjectVariable) -> TupleVariable:
    if not isinstance(exception, ExceptionVariable):  # from outside
        args = tx.getattr(exception, "args")
        assert isinstance(args, TupleVariable)
        return args
    if exception.args is None:
        _break(tx, exception, "the message")
    assert exception.args is not None
    return exception.args


def _str(tx: Tracer, self: ObjectVariable) -> VariableTracker:
    args = _args(tx, self).items
    if not args:
        return ConstantVariable("")
    return tx.call(str, [args[0] if len(args) == 1 else _args(tx, self)])


@registry.method(KeyError, "__str__")
def _key_str(tx: Tracer, self: ObjectVariable) -> VariableTracker:
    args = _args(tx, self).items
    return tx.call(repr, args) if len(args) == 1 else _str(tx, self)


def _repr(tx: Tracer, self: ObjectVariable) -> VariableTracker:
    parts = [str(as_constant(tx.call(repr, [arg]))) for arg in _args(tx, self).items]
    return ConstantVariable(f"{self.cls.__name__}({', '.join(parts)})")


def _text_from_fields(tx: Tracer, self: ExceptionVariable) -> VariableTracker:
    """Returns the text of an exception whose class computes it from the fields."""
    written = tx.side_effects.written_attributes(self)
    if self.text is None or any(name in written for name in self.fields):
        _break(tx, self, "the message")
    return ConstantVariable(self.text)


_BUILTINS = {cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)}
for _cls in _BUILTINS:
    if "__str__" in vars(_cls) and formats_itself(_cls):
        registry.method(_cls, "__str__")(_text_from_fields)
for _cls in EXCEPTIONS:
    for _name, _handler in (("__init__", _init), ("__str__", _str), ("__repr__", _repr)):
        if _name in vars(_cls) and (_cls, _name) != (KeyError, "__str__"):
            registry.method(_cls, _name)(_handler)


for _cls in (BaseExceptionGroup, ExceptionGroup):
    registry.function(_cls)(_group(_cls))
for _cls in _BUILTINS.difference(EXCEPTIONS, (BaseExceptionGroup, ExceptionGroup)):
    registry.function(_cls)(_made_by_python(_cls))


@registry.function(sys.exc_info)
def _exc_info(tx: Tracer) -> VariableTracker:
    error = _handled(tx)
    if not isinstance(error, ExceptionVariable):
        return TupleVariable([error, error, error])
    return TupleVariable([class_of(tx, error), error, TracebackVariable(error)])


@registry.function(sys.exception)
def _handled(tx: Tracer) -> VariableTracker:
    """Returns the handled exception; None if neither the traced program nor its caller handles an exception."""
    error = next((frame.handled for frame in reversed(tx.frames) if frame.handled is not None), None)
    if isinstance(error, ExceptionVariable):
        return error
    if error is not None or sys.exception() is not None:
        why = "The `except` block is in a caller of the compiled function."
        tx.break_graph("MD233", "the handled exception is read", why=why)
    tx.guard(_HANDLED_OUTSIDE, GuardKind.IDENTITY, None)
    return ConstantVariable(None)


# Attributes


@registry.attributes(ExceptionVariable)
def _attribute(tx: Tracer, obj: ExceptionVariable, name: str) -> VariableTracker | None:
    _, owner = lookup_on_class(obj.cls, name)
    if tx.side_effects.attr(obj, name) is not UNKNOWN:
        return None
    if name in obj.fields and owner in _BUILTINS:
        return obj.fields[name]
    if name in own_fields(obj.cls) or (owner is None and obj.args is None and obj.cls not in EXCEPTIONS):
        _break(tx, obj, f"`{name}`")
    if owner not in EXCEPTIONS:
        return None
    if name == "args":
        return _args(tx, obj)
    if name == "value" and owner is StopIteration:
        items = _args(tx, obj).items
        return items.lazy_at(0) if items else ConstantVariable(None)
    if name == "__cause__":
        return obj.cause or ConstantVariable(None)
    if name == "__suppress_context__":
        return ConstantVariable(obj.suppresses_context)
    if name == "__traceback__" and obj.is_raised:
        return TracebackVariable(obj)
    if name == "__context__" and obj.context is not None:
        return obj.context
    if name in ("__context__", "__traceback__", *_FILLED_BY_PYTHON):
        if obj.is_raised:  # the caller of the traced program may be handling an exception, too
            _break(tx, obj, f"`{name}`")
        return ConstantVariable(None)
    return None
