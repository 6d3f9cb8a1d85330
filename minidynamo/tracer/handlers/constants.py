"""Owns what is simply run while tracing: pure functions of constants, and everything that numbers and text can do.

It holds tables only; operators are in `tracer/operators.py`.
"""

from __future__ import annotations

import cmath
import enum
import inspect
import math
import operator

import torch

from minidynamo.tracer import registry
from minidynamo.tracer.constants import NotConstant
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.polyfills import FOLDED_BY_POLYFILLS
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable

# math.prod has a polyfill, because it also multiplies tensors.
_MATH = [
    value
    for module in (math, cmath)
    for value in vars(module).values()
    if callable(value) and value is not math.prod and not isinstance(value, type)
]
registry.fold(*_MATH)
registry.fold(ascii, bin, chr, hash, hex, oct, ord, range, bytes, operator.index)
registry.fold(*FOLDED_BY_POLYFILLS)
registry.fold(
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


@registry.attributes(ConstantVariable)
def _enum_attribute(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    if not isinstance(obj.value, enum.Enum):
        return None
    # A class may define `value` or `name` itself; those are traced as the properties they are.
    inherited = name in ("name", "value") and inspect.getattr_static(type(obj.value), name) is vars(enum.Enum)[name]
    if not inherited and name not in ("_name_", "_value_"):
        return None
    try:
        return constant(getattr(obj.value, name))
    except NotConstant:
        tx.break_graph("MD230", f"`.{name}` of an enum member that holds an object", why="Only constants are tracked.")
