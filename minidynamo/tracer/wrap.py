"""Owns the way from a real value to its tracker, and the guards that the knowledge needs.

How values of each type are tracked is up to `wrappers/`. Nothing here or there calls the tracer's verbs: a value is
wrapped without running any code of its class.
"""

from __future__ import annotations

import datetime
import enum
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from minidynamo.core.names import name_of
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Computed, Constant, InstanceAttr, Item, PlainValue, Source, is_read_anew
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.copies import NUMPY_SCALARS
from minidynamo.tracer.records.registry import INSTANCES, SUBCLASS_WRAPPERS, WRAPPERS, Wrapper
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SliceVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, PythonModuleVariable

_DATES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)
_BY_VALUE = (
    int,
    float,
    complex,
    str,
    bytes,
    torch.device,
    range,
    slice,
    torch.finfo,
    torch.iinfo,
    *NUMPY_SCALARS,
    *_DATES,
)
_NO_SYMBOLS = frozenset((complex, *NUMPY_SCALARS, *_DATES)) - {np.bool_}  # values without end, for which none stands
_ONLY_ONES = (type(None), type(...), type(NotImplemented))  # classes of one value each


def wrap(graph: OutputGraph, value: Any, source: Source | None) -> VariableTracker:
    """The tracker of `value`. One object has one tracker: a second source for it is guarded to be the same object."""
    if source is not None:
        known = graph.known(source)
        if known is not None:
            return replace(known) if isinstance(known, NumberVariable) and is_read_anew(source) else known
    _refuse_metaclasses(value)
    if is_constant_value(value):
        return constant(graph, value, source)
    known = graph.values.of(value)
    if known is not None:
        guard_alias(graph, value, known, source)
        return known
    if source is None:
        source = Constant(value, name_of(value))
    return _wrapper(type(value))(graph, value, source)


def _refuse_metaclasses(value: object) -> None:
    """Raise SkipFrame when the metaclass of a class, or of that of an object, compares it or reads its attributes.

    Classes are keys of tables, and everything that is known of an object is read from its class.
    """
    cls: type = value if issubclass(type(value), type) else type(value)  # type: ignore[assignment]
    meta = type(cls)
    if meta.__hash__ is not type.__hash__ or meta.__eq__ is not type.__eq__:
        verb, decides, names = "is compared", "decides itself when two classes are equal", "`__eq__` and `__hash__`"
    elif isinstance(meta.__getattribute__, types.FunctionType):
        verb, decides, names = "is read", "runs code for each attribute of the class", "`__getattribute__`"
    else:
        return
    what, why = (
        f"class {type.__getattribute__(cls, '__name__')} {verb} by its metaclass",
        f"`{meta.__name__}` {decides}.",
    )
    fix = f"Leave {names} out of {meta.__name__}, or call what uses it outside of the compiled function."
    raise SkipFrame(Diagnostic("MD232", what, why=why, fix=fix))


def stays(source: Source) -> bool:
    """Whether a function found here is the same object at every call: globals, and attributes of what is global."""
    if not isinstance(source.root(), Constant):
        return False
    if isinstance(source, Item):
        namespace = source.of
        return (isinstance(namespace, Constant) and namespace.hidden) or isinstance(namespace, Attr)
    return isinstance(source, Attr | InstanceAttr | Constant)


def guard_alias(graph: OutputGraph, value: object, known: VariableTracker, source: Source | None) -> None:
    place = known.source
    # Functions that lie in arguments are told by their code alone, unless it matters which one it is.
    by_code = isinstance(known, FunctionVariable) and place is not None and not stays(place)
    if by_code and source is None and place is not None:
        graph.guard(place, GuardKind.IDENTITY, value)
    if source is None or source == place:
        return
    graph.values.place(source, known)
    if isinstance(known, FunctionVariable | BuiltinVariable | ClassVariable | PythonModuleVariable) and not by_code:
        graph.guard(source, GuardKind.IDENTITY, value)
    elif place is not None:
        graph.guard(source, GuardKind.SAME_OBJECT, place)


def _wrapper(cls: type) -> Wrapper:
    """What tracks the instances of a class: what is registered for it, else for the nearest of its bases."""
    exact = WRAPPERS.get(cls)
    if exact is not None:
        return exact
    if cls in INSTANCES:
        return same_object(BuiltinVariable)
    bases = [base for base in cls.__mro__ if base in SUBCLASS_WRAPPERS]
    # A module may also be a dict or a number: what torch knows of it goes first, wherever its class names which base.
    return SUBCLASS_WRAPPERS[min(bases, key=lambda base: base.__module__.partition(".")[0] != "torch")]


def constant(graph: OutputGraph, value: Any, source: Source | None) -> VariableTracker:
    may_vary = type(value) in (int, float) and source is not None and not isinstance(source, PlainValue)
    if may_vary and source is not None and graph.shapes.varies(source, value):
        if not isinstance(source, Computed):
            graph.guard(source, GuardKind.TYPE, type(value))
        number = graph.integer(value, source) if isinstance(value, int) else graph.floating(value, source)
        graph.values.place(source, number)
        return number
    if isinstance(value, enum.Enum):
        guard_names(graph, type(value))
    if source is None:
        return ConstantVariable(value, lasting=True)
    if type(value) is slice and (varying := _varying_slice(graph, value, source)) is not None:
        return varying
    kind = GuardKind.EQUALS if type(value) in _BY_VALUE else GuardKind.IDENTITY
    if type(value) in _NO_SYMBOLS:
        has_varied = graph.shapes.has_varied(source, value)
    elif type(value) is str:
        has_varied = graph.shapes.text_varies(source, value)
    else:
        has_varied = isinstance(value, enum.Enum) and graph.shapes.object_varies(source, value)
    read = (
        None
        if type(value) in _ONLY_ONES or isinstance(source, Constant)
        else graph.guard_when_asked(source, kind, value, has_varied=has_varied)
    )
    variable = ConstantVariable(value, source=source, on_read=read)
    graph.guard(source, kind if read is None else GuardKind.TYPE, value if read is None else type(value))
    graph.values.place(source, variable)
    return variable


def _varying_slice(graph: OutputGraph, value: slice, source: Source) -> SliceVariable | None:
    """A slice from outside with a bound that varies, by its parts; None for others, which are constants."""
    parts = (value.start, value.stop, value.step)
    if not all(part is None or type(part) is int for part in parts):
        return None
    places = [Computed(f"{{0}}.{name}", (source,)) for name in ("start", "stop", "step")]
    varies = [part is not None and graph.shapes.varies(place, part, source) for place, part in zip(places, parts)]
    if not any(varies):
        return None
    graph.guard(source, GuardKind.TYPE, slice)
    for place, part in zip(places, parts):
        graph.guard(place, GuardKind.TYPE, type(part))
    variable = SliceVariable(*(wrap(graph, part, place) for place, part in zip(places, parts)), source=source)
    graph.values.remember(value, variable)
    return variable


def guard_names(graph: OutputGraph, cls: type) -> None:
    """A name that a class gets later may hide what was found elsewhere, or be looked for by Python itself."""
    for base in cls.__mro__:
        if not is_trusted_class(base):
            graph.guard(Constant(base, base.__name__), GuardKind.CLASS_NAMES, (tuple(base.__dict__), base.__bases__))


def same_object(tracker: Callable[..., VariableTracker]) -> Wrapper:
    def wrapper(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
        graph.guard(source, GuardKind.IDENTITY, value)
        variable = tracker(value, source=source)
        graph.values.remember(value, variable)
        return variable

    return wrapper
