"""Owns the conversion between trackers and plain Python constants, and the keys of tracked dicts and sets.

Installs no guards: the guard of a constant was installed when the constant was wrapped.
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
from minidynamo.core.directives import is_graph_function
from minidynamo.tracer.records.immutable_classes import (
    CALLABLE_ALIAS,
    ISO_CALENDAR_DATE,
    NUMPY_SCALARS,
    may_be_distinct,
)
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    ListVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    Slots,
    TupleVariable,
)
from minidynamo.variables.objects import ClassVariable, ObjectVariable, PythonModuleVariable

# Immutable classes whose parts need no trackers of their own.
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
    """Raised for a tracker that is not a constant, or contains a value that is not a constant."""


def is_constant_value(value: Any) -> bool:
    """Returns whether a real value is tracked as a `ConstantVariable`."""
    if type(value) is slice:
        return all(is_constant_value(part) for part in (value.start, value.stop, value.step))
    if type(value) in (datetime.datetime, datetime.time):  # other time zones run code of their class
        return value.tzinfo is None or type(value.tzinfo) is datetime.timezone
    return type(value) in CONSTANT_TYPES or issubclass(type(value), enum.Enum)


def _returned_operand(
    result: object, operands: Iterable[VariableTracker], values: Iterable[object]
) -> VariableTracker | None:
    """Returns the operand that a function returned unchanged as its result, as `+n` and `s.strip()` may do; else
    None."""
    if not may_be_distinct(result) and type(result) is not tuple:
        return None
    for operand, value in zip(operands, values):
        if value is result and isinstance(operand, ConstantVariable | NumberVariable | TupleVariable):
            return operand
    return None


def is_nan(variable: VariableTracker) -> bool:
    """Returns whether a value is a NaN in this call."""
    value = variable.unguarded_value if isinstance(variable, ConstantVariable | NumberVariable) else None
    return isinstance(value, float | complex) and value != value


def from_constant(value: Any, *, literal: bool = False) -> VariableTracker:
    """Returns the tracker of a value made of constants, tuples, lists, dicts, sets and slices; raises NotConstant.

    Lists, dicts and sets become new objects: use this for results of folded calls and for `co_consts`. `literal`:
    a tuple or frozenset is the same object in each call.
    """
    if is_constant_value(value):
        return ConstantVariable(value)
    if isinstance(value, tuple) and _is_rebuilt_from_items(type(value)):
        items = [from_constant(item, literal=literal) for item in value]
        return TupleVariable(items, type(value), value if literal and type(value) is tuple else None)
    if type(value) is list:
        return ListVariable([from_constant(item) for item in value])
    if type(value) in (set, frozenset):
        keys = {key_of(from_constant(item)): None for item in value}
        if type(value) is frozenset and literal:
            return SetVariable(keys, frozenset, value, is_literal=True)
        real = type(value)([*value])
        return SetVariable(keys, type(value), real if [*real] == [*value] else None)
    if type(value) is dict:
        return DictVariable({key_of(from_constant(key)): from_constant(item) for key, item in value.items()})
    if isinstance(value, type):
        return ClassVariable(value)
    raise NotConstant(type(value).__name__)


def _is_rebuilt_from_items(cls: type) -> bool:
    """Returns whether a class of tuples is called with the items, or has `_fields`, so that instances can be
    rebuilt."""
    return cls in (tuple, torch.Size, ISO_CALENDAR_DATE) or hasattr(cls, "_fields") or hasattr(cls, "n_sequence_fields")


def from_result(value: Any, operands: Sequence[VariableTracker], values: Sequence[object]) -> VariableTracker:
    """Returns `from_constant` of a function's result for `values`, the values of `operands`, which may be parts of the
    result."""
    unchanged = _returned_operand(value, operands, values)
    if unchanged is not None:
        return unchanged
    if type(value) is tuple:
        return TupleVariable([from_result(item, operands, values) for item in value])
    if type(value) is list:
        return ListVariable([from_result(item, operands, values) for item in value])
    if type(value) is dict:
        entries = ((from_result(key, operands, values), item) for key, item in value.items())
        return DictVariable({key_of(key): from_result(item, operands, values) for key, item in entries})
    return from_constant(value)


def slice_of(*parts: VariableTracker) -> VariableTracker:
    """Returns the slice with this start, stop and step. Its attributes are the same objects as the arguments."""
    if all(isinstance(part, ConstantVariable) and not may_be_distinct(part.unguarded_value) for part in parts):
        with contextlib.suppress(NotConstant):
            return from_constant(slice(*map(as_constant, parts)))
    return SliceVariable(*parts)


# Functions of torch that read the dtype of a numpy scalar, not only the value.
_TAKES_DTYPE = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.result_type, "new_tensor")


def reads_as_python(target: Any, variable: VariableTracker) -> bool:
    """Returns whether a torch function reads a real numpy number as a Python number. No tensor stores a number of a
    numpy type that Python lacks."""
    if target is operator.setitem:
        return issubclass(variable.python_type, np.integer | float)
    return not any(target is function or target == function for function in _TAKES_DTYPE)


# Python's number classes, which torch accepts as dtypes.
_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def as_torch_reads(
    target: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    """Returns arguments as torch's functions read them: real numpy numbers as Python numbers, number classes as
    dtypes."""
    if is_graph_function(target):
        return [*args], {**kwargs}
    named = {name: _as_read(target, arg) for name, arg in kwargs.items()}
    return [_as_read(target, arg) for arg in args], named


def _as_read(target: Any, variable: VariableTracker) -> VariableTracker:
    if isinstance(variable, ClassVariable):
        if target == "type":  # `type` also accepts the name of a tensor class
            return ConstantVariable(f"{variable.value.__module__}.{variable.value.__name__}")
        dtype = None if isinstance(target, OpOverload | OpOverloadPacket) else _DTYPES.get(variable.value)
        return variable if dtype is None else ConstantVariable(dtype)
    items = variable.items if isinstance(variable, SequenceVariable) and variable.cls in (list, tuple) else ()
    if type(items) is Slots and any(map(_is_numpy_int, items)):  # sizes, or dimensions
        read = [_as_read(target, item) if _is_numpy_int(item) else item for item in items]
        return TupleVariable(read) if variable.python_type is tuple else ListVariable(read)
    value = variable.value if isinstance(variable, ConstantVariable) else None
    is_real = type(value) in NUMPY_SCALARS and isinstance(value, np.integer | np.floating)
    if not is_real or not reads_as_python(target, variable):
        return variable
    return ConstantVariable(int(value) if isinstance(value, np.integer) else float(value))  # type: ignore[arg-type]


def _is_numpy_int(variable: VariableTracker) -> bool:
    return isinstance(variable, ConstantVariable) and issubclass(variable.python_type, np.integer)


def as_constant(variable: VariableTracker) -> Any:
    """Returns the plain Python value of a tracker made of constants only; raises NotConstant. Specializes symbolic
    numbers."""
    convert = _AS_CONSTANT.get(type(variable))
    if convert is None:
        raise NotConstant(variable.python_type.__name__)
    return convert(variable)


# Special methods that no operator calls.
_NO_OPERATORS = frozenset(("__init__", "__new__", "__init_subclass__", "__reduce_ex__", "__dir__"))
_NO_OPERATORS |= {"__hash__", "__str__", "__repr__", "__format__"}


def overrides_method(cls: type, *names: str) -> bool:
    """Returns whether the program defines one of these special methods for an enum; without names: any operator
    method."""
    if not issubclass(cls, enum.Enum):
        return False
    found = ((name, value) for base in cls.__mro__ if base.__module__ != "enum" for name, value in vars(base).items())
    own = {name for name, value in found if isinstance(value, FunctionType) and value.__module__ != "enum"}
    return any(name in own if names else name.startswith("__") for name in names or own - _NO_OPERATORS)


def has_own_missing(cls: type) -> bool:
    """Returns whether the program defines `_missing_` of an enum, for values without a member."""
    return next((base.__module__ != "enum" for base in cls.__mro__ if "_missing_" in vars(base)), False)


def may_create_members(cls: type) -> bool:
    """Returns whether operators on a flag run code of the program to create new members."""
    return issubclass(cls, enum.Flag) and has_own_missing(cls)


def contains_override(variable: VariableTracker, *names: str) -> bool:
    """Returns whether a value is, or contains, an enum member whose class defines one of these methods; without names:
    any operator method."""
    if isinstance(variable, ConstantVariable):
        cls = variable.python_type
        return overrides_method(cls, *names) or (not names and may_create_members(cls))
    held: list[VariableTracker] = []
    if isinstance(variable, DictVariable | SetVariable):
        held += [key.variable for key in variable.items]
    if isinstance(variable, DictVariable):
        held += variable.items.values()
    if isinstance(variable, SequenceVariable):
        held += variable.items
    return any(contains_override(item, *names) for item in held)


def key_of(variable: VariableTracker) -> DictKey:
    """Returns the key that represents a tracker in a tracked dict or set; raises NotConstant for unhashable values.

    Keys of constants, classes, functions and modules compare by value, other objects by identity. The caller must check
    that the class defines neither `__eq__` nor `__hash__`.
    """
    return DictKey(_token(variable), variable)


def keyword_key(name: str) -> DictKey:
    """Returns the dict key for a keyword argument."""
    return key_of(ConstantVariable(name))


def _token(variable: VariableTracker) -> Any:
    if isinstance(
        variable, ConstantVariable | ClassVariable | FunctionVariable | BuiltinVariable | PythonModuleVariable
    ):
        return variable.value
    if isinstance(variable, ObjectVariable) and isinstance(variable.storage, ConstantVariable | TupleVariable):
        return _token(variable.storage)  # its class has neither `__eq__` nor `__hash__`
    if isinstance(variable, NumberVariable):
        return variable.specialize()
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
    """Returns the number or text of an instance of a subclass, if the class redefines no operation."""
    if not isinstance(variable.storage, ConstantVariable) or _redefines_operations(variable.cls):
        raise NotConstant(variable.cls.__name__)
    return variable.storage.value


def plain_operand(variable: VariableTracker) -> VariableTracker:
    """Returns the operand as the operators of numbers and texts read it: the number or text of an instance of a
    subclass."""
    storage = variable.storage if isinstance(variable, ObjectVariable) else None
    return ConstantVariable(storage.value) if isinstance(storage, ConstantVariable) else variable


def _redefines_operations(cls: type) -> bool:
    names = (name for base in cls.__mro__ for name, found in vars(base).items() if isinstance(found, FunctionType))
    return any(name.startswith("__") and name != "__init__" for name in names)


def _value(variable: Any) -> Any:
    return variable.value


_AS_CONSTANT: dict[type[VariableTracker], Callable[[Any], Any]] = {
    ConstantVariable: _value,
    NumberVariable: lambda number: number.specialize(),
    ClassVariable: _value,
    ObjectVariable: _plain_value,
    TupleVariable: _sequence,
    ListVariable: _sequence,
    DictVariable: _dict,
    SetVariable: _set,
    SliceVariable: lambda s: slice(as_constant(s.start), as_constant(s.stop), as_constant(s.step)),
}
