"""Owns the tables of operations that run during capture: pure functions of constants, and methods of numbers and text.

Operators are in `tracer/calls/operators.py`.
"""

from __future__ import annotations

import cmath
import enum
import inspect
import math
import operator
import types

import torch

from minidynamo import compat
from minidynamo.errors import an
from minidynamo.guards.source import Constant, InstanceAttr
from minidynamo.tracer.frames.exceptions import same_message, tracked
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, expect_constant, is_constant, not_implemented
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, is_constant_value
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import ConstantVariable, VariableTracker

# math.prod has a polyfill, because it also multiplies tensors.
_MATH = [
    value
    for module in (math, cmath)
    for value in vars(module).values()
    if callable(value) and value is not math.prod and not isinstance(value, type)
]
registry.fold(*_MATH)
registry.fold(bin, chr, hex, oct, ord, bytes, operator.index)
registry.fold(
    compat.is_autocast_available,
    torch.broadcast_shapes,
    torch.can_cast,
    torch.device,
    torch.finfo,
    torch.iinfo,
    torch.promote_types,
)
registry.fold_type(
    bool,
    bytes,
    complex,
    float,
    int,
    range,
    str,
    type(None),
    torch.device,
    torch.dtype,
    torch.finfo,
    torch.iinfo,
    torch.layout,
    torch.memory_format,
)


# Operators of numbers and text. If they return NotImplemented, the other operand is asked (`2 * [x]`, `5 + bag`). The
# operator `%` of text accepts any operand, so it is not in this table and breaks the graph instead.
_OPERAND_TYPES = (int, float, complex, str, bytes)
_OPERATORS = (
    *("add", "and", "floordiv", "lshift", "matmul", "mul", "mod", "or", "pow", "rshift", "sub", "truediv", "xor"),
    *("lt", "le", "eq", "ne", "gt", "ge"),
)


def _operator(cls: type, name: str) -> registry.Handler:
    real = vars(cls)[name]

    def handle(tx: Tracer, self: VariableTracker, other: VariableTracker) -> VariableTracker:
        if not is_constant(other):
            if cls in (str, bytes) and name in ("__add__", "__mul__", "__rmul__"):  # never return NotImplemented
                tx.raises(TypeError(f"{an(cls.__name__)} does not take {an(other.python_type.__name__)} here"))
            return not_implemented()
        value = expect_constant(tx, self, "an address")
        try:
            return constant(real(value, as_constant(other)))
        except (ArithmeticError, ValueError, TypeError, MemoryError) as error:
            tx.raises(tracked(error, tx.side_effects, exact=same_message(error)))

    return handle


for _cls in _OPERAND_TYPES:
    for _operation in _OPERATORS:
        for _name in (f"__{_operation}__", f"__r{_operation}__"):
            if _name in vars(_cls) and (_cls, _operation) not in ((str, "mod"), (bytes, "mod")):
                registry.method(_cls, _name)(_operator(_cls, _name))


@registry.attributes(ConstantVariable)
def _enum_attribute(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    if not issubclass(obj.python_type, enum.Enum):
        return None
    if isinstance(type(obj.value).__getattribute__, types.FunctionType):
        tx.break_graph(
            "MD206", f"`{name}` of {an(obj.python_type.__name__)} is used", why="It has a `__getattribute__`."
        )
    # A class may define `value` or `name` itself; its properties are traced.
    inherited = name in ("name", "value") and inspect.getattr_static(type(obj.value), name) is vars(enum.Enum)[name]
    stored = f"_{name.strip('_')}_"
    if (not inherited and name not in ("_name_", "_value_")) or stored not in vars(obj.value):
        return None
    value = vars(obj.value)[stored]
    if is_constant_value(value) and is_trusted_class(type(obj.value)):
        return ConstantVariable(value)
    return tx.wrap(value, InstanceAttr(Constant(obj.value, enum.Enum.__str__(obj.value)), stored))
