"""Owns the creation of trackers for real values, and the necessary guards.

`wrappers/` decides how values of each type are tracked. Wrapping runs no code of the value's class, so neither this
file nor `wrappers/` calls methods of the tracer.
"""

from __future__ import annotations

import datetime
import enum
import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from minidynamo.core.names import name_of
from minidynamo.errors import Diagnostic, GraphBreak, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Computed, Constant, InstanceAttr, Item, PlainValue, Source, is_new_each_read
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.immutable_classes import NUMPY_SCALARS
from minidynamo.tracer.records.registry import INSTANCES, SUBCLASS_WRAPPERS, WRAPPERS, Wrapper
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.containers import SliceVariable
from minidynamo.variables.objects import ClassVariable, LazyVariable, PythonModuleVariable

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
_NO_SYMBOLS = frozenset((complex, *NUMPY_SCALARS, *_DATES)) - {np.bool_}  # unlimited values, and no symbols
_SINGLETONS = (type(None), type(...), type(NotImplemented))  # classes with one instance each


def wrap(graph: OutputGraph, value: Any, source: Source | None) -> VariableTracker:
    """Returns the tracker of `value`. An object has one tracker: for a second source, a guard checks the identity."""
    if id(value) in graph.values.replaced:
        return _replacement(graph, value)
    if source is not None:
        known = graph.known(source)
        if known is not None:
            return replace(known) if isinstance(known, NumberVariable) and is_new_each_read(source) else known
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


def lazy(graph: OutputGraph, value: object, source: Source, *, presence_guarded: bool = False) -> VariableTracker:
    """Returns the tracker of a value that the program moves; an unknown value becomes lazy, with a guard that the
    source exists, unless another guard checks this (`presence_guarded`)."""
    if id(value) in graph.values.replaced:
        return _replacement(graph, value)
    known = graph.known(source)
    if known is not None:
        return known
    graph.values.record_lazy(value, source)
    if not presence_guarded:
        graph.guard(source, GuardKind.PRESENT, None)
    return lazy_value(graph, value, source)


def _replacement(graph: OutputGraph, value: object) -> VariableTracker:
    found = graph.values.replaced[id(value)]
    if found is None:
        what = "graph break: a parameter of a sharded module is read after its forward"
        raise GraphBreak(Diagnostic("MD207", what, "FSDP has replaced it.", where=graph.where()))
    return found


def lazy_value(graph: OutputGraph, value: object, source: Source) -> LazyVariable:
    """Returns a new lazy value."""
    known, wrapped = functools.partial(graph.known, source), functools.partial(wrap, graph, value, source)
    return LazyVariable(value, known, wrapped, source=source)


def _refuse_metaclasses(value: object) -> None:
    """Raises SkipFrame if the metaclass of `value` or of its class overrides comparison or attribute access.

    Classes are keys of tables, and all facts about an object are read from its class.
    """
    cls: type = value if issubclass(type(value), type) else type(value)  # type: ignore[assignment]
    meta = type(cls)
    if meta.__hash__ is not type.__hash__ or meta.__eq__ is not type.__eq__:
        verb, behavior, names = "is compared", "decides itself when two classes are equal", "`__eq__` and `__hash__`"
    elif isinstance(meta.__getattribute__, types.FunctionType):
        verb, behavior, names = "is read", "runs code for each attribute of the class", "`__getattribute__`"
    else:
        return
    what = f"class {type.__getattribute__(cls, '__name__')} {verb} by its metaclass"
    fix = f"Leave {names} out of {meta.__name__}, or use the class outside of the compiled function."
    raise SkipFrame(Diagnostic("MD232", what, why=f"`{meta.__name__}` {behavior}.", fix=fix))


def is_stable(source: Source) -> bool:
    """Returns whether a function at this source is the same object at every call: globals, and attributes of
    globals."""
    if not isinstance(source.root(), Constant):
        return False
    if isinstance(source, Item):
        namespace = source.of
        return (isinstance(namespace, Constant) and namespace.hidden) or isinstance(namespace, Attr)
    return isinstance(source, Attr | InstanceAttr | Constant)


def guard_alias(graph: OutputGraph, value: object, known: VariableTracker, source: Source | None) -> None:
    """Guards that `source` leads to the same object as the source of its tracker `known`."""
    known_source = known.source
    # Functions in arguments are guarded by code alone, unless identity matters.
    by_code = isinstance(known, FunctionVariable) and known_source is not None and not is_stable(known_source)
    if by_code and source is None and known_source is not None:
        graph.guard(known_source, GuardKind.IDENTITY, value)
    if source is None or source == known_source:
        return
    graph.values.record_at(source, known)
    if isinstance(known, FunctionVariable | BuiltinVariable | ClassVariable | PythonModuleVariable) and not by_code:
        graph.guard(source, GuardKind.IDENTITY, value)
    elif known_source is not None:
        graph.guard(source, GuardKind.SAME_OBJECT, known_source)


def _wrapper(cls: type) -> Wrapper:
    """Returns the wrapper for instances of a class: registered for the class, or else for the nearest base."""
    exact = WRAPPERS.get(cls)
    if exact is not None:
        return exact
    if cls in INSTANCES:
        return same_object(BuiltinVariable)
    bases = [base for base in cls.__mro__ if base in SUBCLASS_WRAPPERS]
    # A module may also be a dict or a number: bases from torch come first, in any order of bases.
    return SUBCLASS_WRAPPERS[min(bases, key=lambda base: base.__module__.partition(".")[0] != "torch")]


def constant(graph: OutputGraph, value: Any, source: Source | None) -> VariableTracker:
    """Returns the tracker of a constant: symbolic if the number at `source` has varied, otherwise guarded when it is
    read."""
    if isinstance(value, enum.Enum):
        guard_names(graph, type(value))
    if source is None:
        return ConstantVariable(value)
    varying = _varying_number(graph, value, source) or _varying_slice(graph, value, source)
    if varying is not None:
        return varying
    has_varied = _has_varied(graph, value, source)
    kind = GuardKind.EQUALS if type(value) in _BY_VALUE else GuardKind.IDENTITY
    if type(value) in _SINGLETONS or isinstance(source, Constant):
        variable = ConstantVariable(value, source=source)
        graph.guard(source, kind, value)
    else:
        on_read = graph.guard_on_read(source, kind, value, has_varied=has_varied)
        variable = ConstantVariable(value, source=source, on_read=on_read)
        graph.guard(source, GuardKind.TYPE, type(value))
    graph.values.record_at(source, variable)
    return variable


def _has_varied(graph: OutputGraph, value: object, source: Source) -> bool:
    """Returns whether the value at `source`, which cannot be symbolic, has differed between calls."""
    if type(value) in _NO_SYMBOLS:
        return graph.shapes.has_varied(source, value)
    if type(value) is str:
        return graph.shapes.text_varies(source, value)
    return isinstance(value, enum.Enum) and graph.shapes.object_varies(source, value)


def _varying_number(graph: OutputGraph, value: Any, source: Source) -> NumberVariable | None:
    """Returns the tracker of an external int or float that has varied; None for anything else."""
    is_number = type(value) in (int, float) and not isinstance(source, PlainValue)
    if not is_number or not graph.shapes.varies(source, value):
        return None
    if not isinstance(source, Computed):
        graph.guard(source, GuardKind.TYPE, type(value))
    number = graph.integer(value, source) if isinstance(value, int) else graph.floating(value, source)
    graph.values.record_at(source, number)
    return number


def _varying_slice(graph: OutputGraph, value: object, source: Source) -> SliceVariable | None:
    """Returns the tracker of an external slice with a varying bound, with a tracker per part; None for anything
    else."""
    if type(value) is not slice:
        return None
    parts = (value.start, value.stop, value.step)
    if not all(part is None or type(part) is int for part in parts):
        return None
    part_sources = [Computed(f"{{0}}.{name}", (source,)) for name in ("start", "stop", "step")]
    varies = [
        part is not None and graph.shapes.varies(part_source, part, source)
        for part_source, part in zip(part_sources, parts)
    ]
    if not any(varies):
        return None
    graph.guard(source, GuardKind.TYPE, slice)
    for part_source, part in zip(part_sources, parts):
        graph.guard(part_source, GuardKind.TYPE, type(part))
    variable = SliceVariable(
        *(wrap(graph, part, part_source) for part_source, part in zip(part_sources, parts)), source=source
    )
    graph.values.record_object(value, variable)
    return variable


def guard_names(graph: OutputGraph, cls: type) -> None:
    """Guards the names in a class: a name added later may hide an inherited attribute, or change Python's own
    lookups."""
    for base in cls.__mro__:
        if not is_trusted_class(base):
            graph.guard(Constant(base, base.__name__), GuardKind.CLASS_NAMES, (tuple(base.__dict__), base.__bases__))


def same_object(tracker: Callable[..., VariableTracker]) -> Wrapper:
    """Returns a wrapper for values that are guarded by identity."""

    def wrapper(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
        graph.guard(source, GuardKind.IDENTITY, value)
        variable = tracker(value, source=source)
        graph.values.record_object(value, variable)
        return variable

    return wrapper
