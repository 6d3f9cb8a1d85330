"""Owns the two-way street between trackers and plain Python constants, and the keys of tracked dicts and sets.

It installs no guards: a constant's guard was installed when it was wrapped.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import enum
import operator
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch

from minidynamo.compat import OpOverload, OpOverloadPacket
from minidynamo.core.directives import is_put_into_graphs
from minidynamo.guards.source import Computed
from minidynamo.tracer.records.copies import (
    CALLABLE_ALIAS,
    ISO_CALENDAR_DATE,
    NUMPY_SCALARS,
    anew,
    can_be_two,
    group_names,
    is_made_anew,
    parts_of,
)
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    Keyword,
    ListVariable,
    SequenceVariable,
    SetStep,
    SetVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, IdVariable, ObjectVariable, PythonModuleVariable

# Immutable classes without parts that need tracking of their own.
CONSTANT_TYPES: frozenset[type] = frozenset(
    {
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        type(...),
        type(NotImplemented),
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.finfo,
        torch.iinfo,
        torch.qscheme,
        torch.nn.attention.SDPBackend,
        re.Match,
        re.Pattern,
        types.GenericAlias,
        types.UnionType,
        CALLABLE_ALIAS,
        datetime.date,
        datetime.timedelta,
        datetime.timezone,
        np.finfo,
        np.iinfo,
        *NUMPY_SCALARS,
        *(type(np.dtype(scalar)) for scalar in NUMPY_SCALARS),
    }
)


class NotConstant(Exception):
    """A tracker is not, or contains something that is not, a constant."""


def is_constant_value(value: Any) -> bool:
    """Whether a real value is tracked as a `ConstantVariable`."""
    if type(value) is slice:
        return all(is_constant_value(part) for part in (value.start, value.stop, value.step))
    if type(value) in (datetime.datetime, datetime.time):  # other time zones are objects that run code of their own
        return value.tzinfo is None or type(value.tzinfo) is datetime.timezone
    return type(value) in CONSTANT_TYPES or issubclass(type(value), enum.Enum)


def given_back(result: object, operands: Iterable[VariableTracker], values: Iterable[object]) -> VariableTracker | None:
    """The operand whose very object a function has given as its result, as `+n` and `s.strip()` may do, or what an
    operand holds, as `match.string`."""
    if not can_be_two(result) and type(result) is not tuple:
        return None
    for operand, value in zip(operands, values):
        if value is result and isinstance(operand, ConstantVariable | NumberVariable | TupleVariable):
            return operand
        found = _held(result, operand, value)
        if found is None and isinstance(operand, SequenceVariable) and isinstance(value, list | tuple):
            found = given_back(result, operand.items, value)
        if found is not None:
            return found
    return None


def _held(result: object, operand: VariableTracker, value: object) -> VariableTracker | None:
    """The tracker of what is `result`, if `value`, a constant, holds it."""
    if not isinstance(operand, ConstantVariable):
        return None
    if any(name is result for name in group_names(value)):
        return ConstantVariable(result, lasting=True)
    for place, (template, part) in enumerate(parts_of(value)):
        with contextlib.suppress(NotConstant):
            found = given_back(result, [_part(operand, place, template, part)], [part])
            if found is not None:
                return found
    return None


def _part(whole: ConstantVariable, place: int, template: str, part: object) -> VariableTracker:
    if whole.made_of:
        return whole.made_of[place]
    if whole.source is None or type(part) is tuple:
        return from_constant(part, lasting=whole.lasting or whole.source is not None or not is_made_anew(whole.here))
    return ConstantVariable(part, source=Computed(template, (whole.source,)))


def is_nan(variable: VariableTracker) -> bool:
    """Whether a value is a NaN in this call."""
    value = variable.here if isinstance(variable, ConstantVariable | NumberVariable) else None
    return isinstance(value, float | complex) and value != value


def from_constant(value: Any, *, lasting: bool = False) -> VariableTracker:
    """The tracker of a value made of constants, tuples, lists, dicts, sets and slices; raises NotConstant.

    Lists, dicts and sets become new ones: use it for results of folded calls and for `co_consts`. What is immutable is
    another object at each call unless it is `lasting`: a literal, or held by something that lives on.
    """
    if is_constant_value(value):
        return ConstantVariable(value, lasting=lasting)
    if isinstance(value, tuple) and _is_made_of_items(type(value)):
        items = [from_constant(item, lasting=lasting) for item in value]
        return TupleVariable(items, type(value), value if lasting and type(value) is tuple else None)
    if type(value) is list:
        return ListVariable([from_constant(item) for item in value])
    if type(value) in (set, frozenset):
        items = [from_constant(item) for item in value]
        keys = {key_of(item): None for item in items}
        if type(value) is frozenset and lasting:
            return SetVariable(keys, frozenset, value, is_literal=True)
        real = type(value)([*value])
        made = SetStep("new", (TupleVariable(items),))
        return SetVariable(keys, type(value), real if [*real] == [*value] else None, made)
    if type(value) is dict:
        return DictVariable({key_of(from_constant(key)): from_constant(item) for key, item in value.items()})
    if isinstance(value, type):
        return ClassVariable(value)
    raise NotConstant(type(value).__name__)


def _is_made_of_items(cls: type) -> bool:
    """Whether a class of tuples is called with its items, or has `_fields`, and can be made again."""
    return cls in (tuple, torch.Size, ISO_CALENDAR_DATE) or hasattr(cls, "_fields") or hasattr(cls, "n_sequence_fields")


def from_result(value: Any, operands: Sequence[VariableTracker], values: Sequence[object]) -> VariableTracker:
    """`from_constant` of what a function has given for `values`, those of the operands, which may be among it."""
    unchanged = given_back(value, operands, values)
    if unchanged is not None:
        return unchanged
    if type(value) is tuple:
        return TupleVariable([from_result(item, operands, values) for item in value])
    if type(value) is list:
        return ListVariable([from_result(item, operands, values) for item in value])
    if type(value) is range and all(operand.python_type is int for operand in operands):
        return ConstantVariable(value, made_of=tuple(operands))
    if type(value) is dict:
        entries = ((from_result(key, operands, values), item) for key, item in value.items())
        return DictVariable({key_of(key): from_result(item, operands, values) for key, item in entries})
    held = parts_of(value)
    if held and (type(value) is not datetime.timezone or is_made_anew(value)):  # `timezone.utc` is the only one
        with contextlib.suppress(NotConstant):
            return ConstantVariable(value, made_of=tuple(from_result(part, operands, values) for _, part in held))
    return from_constant(value)


def slice_of(*parts: VariableTracker) -> VariableTracker:
    """The slice with this start, stop and step. It gives back the objects that it was made of."""
    if all(isinstance(part, ConstantVariable) and not can_be_two(part.here) for part in parts):
        with contextlib.suppress(NotConstant):
            return from_constant(slice(*map(as_constant, parts)))
    return SliceVariable(*parts)


# Functions of torch that take a numpy scalar's dtype, too, and not its value alone.
_TAKES_DTYPE = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.result_type, "new_tensor")


def reads_as_plain(target: Any, variable: VariableTracker) -> bool:
    """Whether a function of torch reads a real number of numpy's as Python's; no tensor stores what Python has not."""
    if target is operator.setitem:
        return issubclass(variable.python_type, np.integer | float)
    return not any(target is function or target == function for function in _TAKES_DTYPE)


# Python's classes of numbers, which torch takes in the place of a dtype.
_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def as_torch_reads(
    target: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    """Arguments as torch's functions read them: numpy's real numbers are Python's, classes of numbers are dtypes."""
    if is_put_into_graphs(target):
        return [*args], {**kwargs}
    named = {name: _as_read(target, arg) for name, arg in kwargs.items()}
    return [_as_read(target, arg) for arg in args], named


def _as_read(target: Any, variable: VariableTracker) -> VariableTracker:
    if isinstance(variable, ClassVariable):
        if target == "type":  # which takes a class of tensors by its name, too
            return ConstantVariable(f"{variable.value.__module__}.{variable.value.__name__}")
        dtype = None if isinstance(target, OpOverload | OpOverloadPacket) else _DTYPES.get(variable.value)
        return variable if dtype is None else ConstantVariable(dtype)
    items = variable.items if isinstance(variable, SequenceVariable) and variable.cls in (list, tuple) else ()
    if type(items) in (list, tuple) and any(map(_is_numpy_int, items)):  # sizes, or dimensions
        read = [_as_read(target, item) if _is_numpy_int(item) else item for item in items]
        return TupleVariable(read) if variable.python_type is tuple else ListVariable(read)
    value = variable.value if isinstance(variable, ConstantVariable) else None
    is_real = type(value) in NUMPY_SCALARS and isinstance(value, np.integer | np.floating)
    if not is_real or not reads_as_plain(target, variable):
        return variable
    return ConstantVariable(int(value) if isinstance(value, np.integer) else float(value))  # type: ignore[arg-type]


def _is_numpy_int(variable: VariableTracker) -> bool:
    return isinstance(variable, ConstantVariable) and issubclass(variable.python_type, np.integer)


def as_constant(variable: VariableTracker) -> Any:
    """The plain Python value of a tracker that is made of constants alone; raises NotConstant.

    Numbers that differ from call to call become constants by that.
    """
    convert = _AS_CONSTANT.get(type(variable))
    if convert is None:
        raise NotConstant(variable.python_type.__name__)
    return convert(variable)


# Special methods that no operator calls.
_NO_OPERATORS = frozenset(("__init__", "__new__", "__init_subclass__", "__reduce_ex__", "__dir__"))
_NO_OPERATORS |= {"__hash__", "__str__", "__repr__", "__format__"}


def has_own(cls: type, *names: str) -> bool:
    """Whether the program has written one of these special methods for the members of an enum; without names, one that
    an operator calls."""
    if not issubclass(cls, enum.Enum):
        return False
    found = ((name, value) for base in cls.__mro__ if base.__module__ != "enum" for name, value in vars(base).items())
    own = {name for name, value in found if isinstance(value, FunctionType) and value.__module__ != "enum"}
    return any(name in own if names else name.startswith("__") for name in names or own - _NO_OPERATORS)


def has_own_missing(cls: type) -> bool:
    """Whether the program decides for an enum what it gives for a value that none of its members has."""
    return next((base.__module__ != "enum" for base in cls.__mro__ if "_missing_" in vars(base)), False)


def asks_for_members(cls: type) -> bool:
    """Whether operators run code of the program's where they give what is no member of a flag yet."""
    return issubclass(cls, enum.Flag) and has_own_missing(cls)


def involves_own(variable: VariableTracker, *names: str) -> bool:
    """Whether a member of an enum for which the program has written one of these methods is the value, or is in it;
    without names, one that an operator calls."""
    if isinstance(variable, ConstantVariable):
        cls = variable.python_type
        return has_own(cls, *names) or (not names and asks_for_members(cls))
    held: list[VariableTracker] = []
    if isinstance(variable, DictVariable | SetVariable):
        held += [key.variable for key in variable.items]
    if isinstance(variable, DictVariable):
        held += variable.items.values()
    if isinstance(variable, SequenceVariable):
        held += variable.items
    return any(involves_own(item, *names) for item in held)


def key_of(variable: VariableTracker) -> DictKey:
    """The stand-in of a tracker used as dict key or set element; raises NotConstant for unhashable ones.

    Keys of constants and of classes, functions and modules compare by value, other objects by identity; the caller
    must have made sure that the class defines neither `__eq__` nor `__hash__`.
    """
    return DictKey(_token(variable), variable)


def key_named(name: str) -> DictKey:
    """The key under which a dict holds the keyword argument of this name: the very text that a spread mapping had."""
    return name.key if isinstance(name, Keyword) else key_of(ConstantVariable(name))


def _token(variable: VariableTracker) -> Any:
    if isinstance(
        variable, ConstantVariable | ClassVariable | FunctionVariable | BuiltinVariable | PythonModuleVariable
    ):
        return variable.value
    if isinstance(variable, ObjectVariable) and isinstance(variable.storage, ConstantVariable | TupleVariable):
        return _token(variable.storage)  # its class has neither `__eq__` nor `__hash__`
    if isinstance(variable, IdVariable):
        return ("id", variable.of)
    if isinstance(variable, NumberVariable):
        return variable.pin()
    if isinstance(variable, TupleVariable):
        return tuple(_token(item) for item in variable.items)
    if isinstance(variable, SetVariable) and variable.cls is frozenset:
        return frozenset(key.token for key in variable.items)
    if isinstance(variable, ListVariable | DictVariable | SetVariable | SliceVariable):
        raise NotConstant(variable.python_type.__name__)
    return variable


def _sequence(variable: SequenceVariable) -> Any:
    items = [as_constant(item) for item in variable.items]
    if variable.cls in (list, tuple, torch.Size):
        return variable.cls(items)
    if hasattr(variable.cls, "_fields") or variable.cls is ISO_CALENDAR_DATE:
        return variable.cls(*items)
    if isinstance(variable, ListVariable) and variable.cls is collections.deque:
        return collections.deque(items, variable.maxlen)
    raise NotConstant(variable.cls.__name__)


def _dict(variable: DictVariable) -> Any:
    if variable.cls not in (dict, collections.OrderedDict):
        raise NotConstant(variable.cls.__name__)
    return variable.cls((as_constant(key.variable), as_constant(value)) for key, value in variable.items.items())


def _set(variable: SetVariable) -> Any:
    if variable.cls not in (set, frozenset):
        raise NotConstant(variable.cls.__name__)
    value = variable.cls(as_constant(key.variable) for key in variable.items)
    if len(value) < 2:
        return value
    order = None if variable.real is None or variable.source is not None else [*variable.real]
    for found in (value, variable.cls(variable.real or ())):
        if [*found] == order:
            return found
    raise NotConstant(f"{variable.cls.__name__} of unknown order")


def _plain_value(variable: ObjectVariable) -> Any:
    """The number or text that an instance of a subclass is, if the class means nothing else by any operation."""
    if not isinstance(variable.storage, ConstantVariable) or _redefines_operations(variable.cls):
        raise NotConstant(variable.cls.__name__)
    return anew(variable.storage.value)


def below(variable: VariableTracker) -> VariableTracker:
    """What the operators of numbers and texts see of an operand: of an instance of a subclass the number or text."""
    storage = variable.storage if isinstance(variable, ObjectVariable) else None
    return ConstantVariable(anew(storage.value)) if isinstance(storage, ConstantVariable) else variable


def _redefines_operations(cls: type) -> bool:
    names = (name for base in cls.__mro__ for name, found in vars(base).items() if isinstance(found, FunctionType))
    return any(name.startswith("__") and name != "__init__" for name in names)


def _value(variable: Any) -> Any:
    return variable.value


_AS_CONSTANT: dict[type[VariableTracker], Callable[[Any], Any]] = {
    ConstantVariable: _value,
    NumberVariable: lambda number: number.pin(),
    ClassVariable: _value,
    ObjectVariable: _plain_value,
    TupleVariable: _sequence,
    ListVariable: _sequence,
    DictVariable: _dict,
    SetVariable: _set,
    SliceVariable: lambda s: slice(as_constant(s.start), as_constant(s.stop), as_constant(s.step)),
}
