"""Owns exceptions as objects: construction, attributes, and text.

Raising and handling are in `tracer/frames/exceptions.py`. Uses of tracebacks break the graph, and so do uses of the
arguments or text of an exception of which only the class is known.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable

from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer.attributes import class_of, lookup_on_class
from minidynamo.tracer.calls.construct import checked_class
from minidynamo.tracer.frames.exceptions import EXCEPTIONS, HAS_OWN_FIELDS, formats_itself, own_fields
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.fix_hints import MAKE_OUTSIDE
from minidynamo.tracer.records.side_effects import UNKNOWN
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ExceptionVariable, ObjectVariable, TracebackVariable

_CONSTRUCTORS = {id(cls.__new__): cls.__new__ for cls in EXCEPTIONS}
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


def _refuse(cls: type[BaseException]) -> registry.Handler:
    """Returns a handler for a class with fields besides the arguments."""

    def make(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        tx.break_graph("MD211", f"{an(cls.__name__)} is created", why=HAS_OWN_FIELDS, fix=MAKE_OUTSIDE)

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
    tx.break_graph("MD206", f"{what} of {an(name)} is used", why="Only Python knows it, after raising the exception.")


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


for _cls in _BUILTINS.difference(EXCEPTIONS):
    registry.function(_cls)(_refuse(_cls))


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
