"""Owns questions about classes and objects: isinstance, issubclass, type and super.

Attribute access and object construction are in the tracer.
"""

from __future__ import annotations

import abc
import enum
import inspect
import operator
import types
import typing
from typing import Any

import torch

from minidynamo.compat import protocol_members
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Constant, Result
from minidynamo.guards.values import ClassQuestion
from minidynamo.tracer.attributes import class_has, overrides_class
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, not_implemented
from minidynamo.tracer.lazy.lazy_value import class_of
from minidynamo.tracer.polyfills.objects import has_members, is_marked_as_buffer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import MethodVariable, SuperVariable
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable

# Metaclasses that answer `isinstance` and `issubclass` from the class alone.
_STANDARD_METACLASSES = (type, abc.ABCMeta, enum.EnumType, type(torch.nn.Parameter), type(torch.nn.Buffer))
# The classes of typing's names for containers and functions.
_TYPING_NAMES = (type(typing.List), type(typing.Tuple), type(typing.Callable))  # noqa: UP006
# Trackers of unions and names of `typing`.
_WITH_MEMBERS = (ConstantVariable, OpaqueVariable, ObjectVariable)
_CHECKS = ("__instancecheck__", "__subclasscheck__")
_STANDARD_CHECKS = {id(getattr(metaclass, name)) for metaclass in _STANDARD_METACLASSES for name in _CHECKS}
# Whether a class has the members of a protocol depends on the class alone.
_STANDARD_CHECKS.add(id(type(typing.Protocol).__subclasscheck__))


def class_tuple(tx: Tracer, classinfo: VariableTracker, checks: tuple[str, ...] = _CHECKS) -> tuple[type, ...]:
    """Returns the classes in the second argument of isinstance; breaks the graph if a class check runs code of its
    own."""
    if isinstance(classinfo, TupleVariable):
        return tuple(cls for item in classinfo.items for cls in class_tuple(tx, item, checks))
    if isinstance(classinfo, ClassVariable):
        _expect_standard_check(tx, classinfo.value, checks)
        return (classinfo.value,)
    members = _members(classinfo.value) if isinstance(classinfo, _WITH_MEMBERS) else None
    if members is None:
        tx.break_graph(
            "MD237",
            f"a class check against a `{classinfo.python_type.__name__}`",
            why="It is not a class, a tuple of classes or a union of them.",
            fix="Check against the class itself.",
        )
    assert isinstance(classinfo, _WITH_MEMBERS)
    tx.guard(classinfo.source, GuardKind.IDENTITY, classinfo.value)
    for cls in members:
        _expect_standard_check(tx, cls, checks)
    return members


def _members(value: object) -> tuple[type, ...] | None:
    """Returns the classes of a union or of a name of `typing` in class checks; None for any other value."""
    origin = typing.get_origin(value)
    if origin in (typing.Union, types.UnionType):
        return typing.get_args(value) if all(isinstance(cls, type) for cls in typing.get_args(value)) else None
    if type(value) in _TYPING_NAMES and isinstance(origin, type):
        return (origin,)
    return None


def _expect_standard_check(tx: Tracer, cls: type, checks: tuple[str, ...]) -> None:
    if any(id(getattr(type(cls), name)) not in _STANDARD_CHECKS for name in checks):
        tx.break_graph(
            "MD237",
            f"a class check against `{cls.__name__}`",
            why=f"Its metaclass `{type(cls).__name__}` decides with its own code.",
            fix="Check against an ordinary class.",
        )


def check_classes(tx: Tracer, question: ClassQuestion, cls: type, classes: tuple[type, ...]) -> Any:
    """Returns `question(cls, classes)`; guarded if another class may be registered with an ABC of `classes` later."""
    if not any(isinstance(each, abc.ABCMeta) for each in classes):
        return question(cls, classes)
    tx.guard(Result(Constant(tx.graph.class_checks, "class_checks")), GuardKind.EQUALS, True)
    return tx.graph.class_checks.ask(question, cls, classes)


@registry.function(isinstance)
@registry.accepts_lazy("obj")
def _isinstance(tx: Tracer, obj: VariableTracker, classinfo: VariableTracker, /) -> VariableTracker:
    protocol = classinfo.value if isinstance(classinfo, ClassVariable) else None
    if protocol is not None and inspect.getattr_static(protocol, "_is_runtime_protocol", False):
        return _implements_protocol(tx, obj.realize(), protocol)
    if overrides_class(obj.python_type):
        what = f"a class check of a `{obj.python_type.__name__}`"
        tx.break_graph("MD237", what, why="Its class defines `__class__`.", fix="Check the wrapped object.")
    classes, cls = class_tuple(tx, classinfo), class_of(tx, obj)
    if torch.nn.Buffer in classes and issubclass(cls, torch.Tensor) and not issubclass(cls, classes):
        return tx.call(is_marked_as_buffer, [obj])
    return ConstantVariable(check_classes(tx, issubclass, cls, classes))


def _implements_protocol(tx: Tracer, obj: VariableTracker, protocol: type) -> VariableTracker:
    """Returns whether the object has the members of the protocol; methods must not be None."""
    if protocol in obj.python_type.__mro__:
        return ConstantVariable(True)
    if any(class_has(obj.python_type, name) for name in ("__getattr__", "__get__")):
        tx.break_graph(
            "MD237",
            f"a class check of a `{obj.python_type.__name__}` against `{protocol.__name__}`",
            why="Its attributes are computed on each read.",
            fix="Check against an ordinary class.",
        )
    members = protocol_members(protocol)
    methods = tuple(name for name in members if callable(getattr(protocol, name, None)))
    return tx.call(has_members, [obj, from_constant(members), from_constant(methods)])


@registry.function(issubclass)
def _issubclass(tx: Tracer, cls: VariableTracker, classinfo: VariableTracker, /) -> VariableTracker:
    if not isinstance(cls, ClassVariable):
        tx.raises(TypeError("issubclass() arg 1 must be a class"), exact=True)
    try:
        return ConstantVariable(check_classes(tx, issubclass, cls.value, class_tuple(tx, classinfo, _CHECKS[1:])))
    except TypeError as error:  # of a protocol with members that are not methods
        tx.raises(error, exact=True)


def _union(name: str) -> None:
    @registry.method(type, name)
    def union(tx: Tracer, self: ClassVariable, other: VariableTracker) -> VariableTracker:
        if not isinstance(other, ClassVariable | ConstantVariable):
            return not_implemented()
        return constant(getattr(type, name)(self.value, other.value), self, other)


_union("__or__")
_union("__ror__")


@registry.method(object, "__lt__", "__le__", "__gt__", "__ge__")
def _no_order(tx: Tracer, self: VariableTracker, other: VariableTracker) -> VariableTracker:
    return not_implemented()


@registry.function(type)
@registry.accepts_lazy("obj")
def _type(tx: Tracer, obj: VariableTracker, /, *rest: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if rest or kwargs:
        tx.break_graph(
            "MD241",
            "making a class",
            why="While tracing, only class statements and namedtuple create classes.",
            fix="Define it outside of the compiled function.",
        )
    cls = class_of(tx, obj)
    return tx.wrap(cls, Constant(cls, cls.__name__))


@registry.function(super)
def _super(
    tx: Tracer, cls: VariableTracker | None = None, receiver: VariableTracker | None = None, /
) -> VariableTracker:
    if cls is None:
        cls, receiver = _class_and_receiver(tx)
    if not isinstance(cls, ClassVariable) or receiver is None:
        tx.break_graph(
            "MD237",
            "an unbound `super`",
            why="It needs a class and an object.",
            fix="Write super() in a method of the class.",
        )
    of_class = isinstance(receiver, ClassVariable) and issubclass(receiver.value, cls.value)
    if not of_class and not issubclass(receiver.python_type, cls.value):
        tx.raises(TypeError("super(type, obj): obj must be an instance or subtype of type"))
    return SuperVariable(cls.value, receiver)


def _class_and_receiver(tx: Tracer) -> tuple[VariableTracker, VariableTracker]:
    """Returns the arguments that `super()` reads from the calling method."""
    frame = tx.frames[-1]
    receiver = frame.read(frame.code.co_varnames[0]) if frame.code.co_argcount else None
    cls = frame.read("__class__") if "__class__" in frame.code.co_freevars else None
    if receiver is not None and cls is not None:
        return cls, receiver
    if receiver is None:
        why = "arg[0] deleted" if frame.code.co_argcount else "no arguments"
    else:
        why = "empty __class__ cell" if "__class__" in frame.code.co_freevars else "__class__ cell not found"
    message = f"super(): {why}"
    if len(tx.frames) == 1:  # the message of a break function would name other arguments
        raise SkipFrame(Diagnostic("MD202", f"the frame runs eagerly: {message}", "RuntimeError"))
    tx.raises(RuntimeError(message), exact=True)


@registry.method(types.MethodType, "__eq__")
def _same_method(tx: Tracer, self: VariableTracker, other: VariableTracker) -> VariableTracker:
    if not isinstance(self, MethodVariable) or not isinstance(other, MethodVariable):
        return not_implemented()
    if not tx.truth(tx.call(operator.is_, [self.receiver, other.receiver])):
        return ConstantVariable(False)
    return tx.call(operator.eq, [self.function, other.function])


@registry.method(type, "__subclasses__")
def _subclasses(tx: Tracer, cls: ClassVariable) -> VariableTracker:
    source = cls.source or Constant(cls.value, cls.value.__name__)
    subclasses = tx.wrap(
        cls.value.__subclasses__(), Called(Constant(type.__subclasses__, "type.__subclasses__"), (source,))
    )
    return ListVariable(tx.unpack(subclasses))
