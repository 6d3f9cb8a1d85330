"""Owns exceptions as objects: making them, their attributes, and their text.

Raising and handling them is not here. What belongs to a traceback breaks the graph, and so does what an exception says
when only its class is known.
"""

from __future__ import annotations

import builtins

from minidynamo.tracer import registry
from minidynamo.tracer.attributes import lookup_on_class
from minidynamo.tracer.constants import as_constant
from minidynamo.tracer.exceptions import EXCEPTIONS, own_fields, says_itself
from minidynamo.tracer.moved_items import hold, moved_at
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.side_effects import UNKNOWN
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.exceptions import ExceptionVariable, TracebackVariable
from minidynamo.variables.objects import ClassVariable

_MAKERS = {id(cls.__new__): cls.__new__ for cls in EXCEPTIONS}
# Attributes that the error's place in the running program decides.
_FILLED_BY_PYTHON = ("name", "obj")


@registry.function(*_MAKERS.values())
@registry.takes_unread("args")
def _new(tx: Tracer, cls: ClassVariable, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    exception = ExceptionVariable(None, cls.value, args=TupleVariable(hold(tx, [*args])))
    tx.frames[-1].forget_words(exception)
    return exception


@registry.takes_unread("args")
def _init(tx: Tracer, self: ExceptionVariable, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if kwargs:
        _break(tx, self, "is made with keywords")
    self.args = TupleVariable(hold(tx, [*args]))
    tx.frames[-1].forget_words(self)
    return ConstantVariable(None)


def _break(tx: Tracer, exception: ExceptionVariable, what: str) -> None:
    name = exception.cls.__name__
    tx.break_graph("MD206", f"a {name} {what}", why="Only an exception that Python itself raises knows all of it.")


def _args(tx: Tracer, exception: ExceptionVariable) -> TupleVariable:
    if exception.args is None:
        _break(tx, exception, "is asked what it says")
    assert exception.args is not None
    return exception.args


def _str(tx: Tracer, self: ExceptionVariable) -> VariableTracker:
    args = _args(tx, self).items
    if not args:
        return ConstantVariable("")
    return tx.call(str, [args[0] if len(args) == 1 else _args(tx, self)])


@registry.method(KeyError, "__str__")
def _key_str(tx: Tracer, self: ExceptionVariable) -> VariableTracker:
    args = _args(tx, self).items
    return tx.call(repr, args) if len(args) == 1 else _str(tx, self)


def _repr(tx: Tracer, self: ExceptionVariable) -> VariableTracker:
    parts = [str(as_constant(tx.call(repr, [arg]))) for arg in _args(tx, self).items]
    return ConstantVariable(f"{self.cls.__name__}({', '.join(parts)})")


def _own_str(tx: Tracer, self: ExceptionVariable) -> VariableTracker:
    """What a class says that has words of its own, of what it keeps."""
    written = tx.side_effects.written_attrs(self)
    if self.text is None or any(name in written for name in self.fields):
        _break(tx, self, "is asked what it says")
    return ConstantVariable(self.text)


_BUILTINS = {cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)}
for _cls in _BUILTINS:
    if "__str__" in vars(_cls) and says_itself(_cls):
        registry.method(_cls, "__str__")(_own_str)
for _cls in EXCEPTIONS:
    for _name, _handler in (("__init__", _init), ("__str__", _str), ("__repr__", _repr)):
        if _name in vars(_cls) and (_cls, _name) != (KeyError, "__str__"):
            registry.method(_cls, _name)(_handler)


# Attributes


@registry.attributes(ExceptionVariable)
def _attribute(tx: Tracer, obj: ExceptionVariable, name: str) -> VariableTracker | None:
    _, owner = lookup_on_class(obj.cls, name)
    if tx.side_effects.attr(obj, name) is not UNKNOWN:
        return None
    if name in obj.fields and owner in _BUILTINS:
        return obj.fields[name]
    if name in own_fields(obj.cls) or (owner is None and obj.args is None and obj.cls not in EXCEPTIONS):
        _break(tx, obj, f"is asked for its `{name}`")
    if owner not in EXCEPTIONS:
        return None
    if name == "args":
        return _args(tx, obj)
    if name == "value" and owner is StopIteration:
        items = _args(tx, obj).items
        return moved_at(items, 0) if items else ConstantVariable(None)
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
            _break(tx, obj, f"is asked for its `{name}`")
        return ConstantVariable(None)
    return None
