"""Owns what functions and methods make of numbers that differ from call to call: `int`, `round`, `math`, `__index__`.

Operators are in `numbers.py`. A function is computed by Python where it cannot raise, which is guarded; otherwise it
takes the number as a constant.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.guards.source import Constant
from minidynamo.tracer.constants import from_constant
from minidynamo.tracer.numbers import binary, computed_text, floating, require, unary
from minidynamo.tracer.operator_table import BINARY, UNARY
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.numbers import NumberVariable


def _rounds(function: Callable[..., Any]) -> Callable[[Tracer, NumberVariable], VariableTracker | None]:
    def call(tx: Tracer, number: NumberVariable) -> VariableTracker | None:
        if number.cls is int:
            return number
        if not abs(number.value) < 4.5e15 or not require(tx, "-4.5e15 < {0} < 4.5e15", True, number):
            return None
        name = function.__name__
        text = computed_text("{0}({1})", Constant(function, name), number)
        return None if text is None else tx.graph.integer(function(number.value), text)

    return call


def _as_float(tx: Tracer, number: NumberVariable) -> VariableTracker | None:
    if number.cls is float:
        return number
    if not abs(number.here) < 2**62:
        return None
    return floating(
        tx, builtins.float(number.here), computed_text("{0}({1})", Constant(builtins.float, "float"), number)
    )


def _of_math(
    function: Callable[..., Any], condition: str
) -> Callable[[Tracer, NumberVariable], VariableTracker | None]:
    """A function of `math` with a float result that does not raise where the condition holds."""

    def call(tx: Tracer, number: NumberVariable) -> VariableTracker | None:
        if not eval(condition.format("here"), {}, {"here": number.here}) or not require(tx, condition, True, number):
            return None
        text = computed_text("{0}({1})", Constant(function, function.__name__), number)
        return floating(tx, function(number.here), text)

    return call


_POSITIVE, _ANY, _SMALL = "0 < {0} < 1e300", "-1e300 < {0} < 1e300", "-700 < {0} < 700"
_ONE_NUMBER: dict[Callable[..., Any], Callable[[Tracer, NumberVariable], VariableTracker | None]] = {
    builtins.int: _rounds(builtins.int),
    round: _rounds(round),
    math.floor: _rounds(math.floor),
    math.ceil: _rounds(math.ceil),
    math.trunc: _rounds(math.trunc),
    builtins.float: _as_float,
    torch.sym_int: _rounds(builtins.int),
    torch.sym_float: _as_float,
    math.sqrt: _of_math(math.sqrt, "0 <= {0} < 1e300"),
    **{f: _of_math(f, _POSITIVE) for f in (math.log, math.log2, math.log10)},
    **{f: _of_math(f, _ANY) for f in (math.sin, math.cos, math.tan, math.tanh, math.atan, math.fabs)},
    **{f: _of_math(f, _SMALL) for f in (math.exp, math.sinh, math.cosh)},
}

# Functions that make a tensor of one element from a float. torch takes it for a constant there.
_TENSORS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)


def call(
    tx: Tracer, function: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """A function of numbers; None when it is not one that is known here."""
    if function is divmod and len(args) == 2 and not kwargs and any(isinstance(arg, NumberVariable) for arg in args):
        return TupleVariable([tx.call(part, args) for part in (operator.floordiv, operator.mod)])
    if len(args) != 1 or not isinstance(args[0], NumberVariable):
        return None
    if args[0].cls is float and any(function is maker for maker in _TENSORS) and kwargs.keys() <= {"dtype", "device"}:
        default = {"dtype": from_constant(torch.get_default_dtype())}
        return tx.emit(torch.full, [TupleVariable([]), args[0]], {**default, **kwargs})
    if kwargs:
        return None
    known = _ONE_NUMBER.get(function) if getattr(function, "__hash__", None) else None
    return None if known is None else known(tx, args[0])


def is_known(function: Any) -> bool:
    """Whether it is a function of one number, whatever it is written in."""
    return getattr(function, "__hash__", None) is not None and function in _ONE_NUMBER


def call_method(
    tx: Tracer, number: NumberVariable, name: str, args: Sequence[VariableTracker]
) -> VariableTracker | None:
    """A special method of a number; None when it takes constants."""
    plain = _METHODS.get(name)
    if plain is None:
        return None
    function, is_reflected = plain
    if function in _ONE_NUMBER and not args:
        return call(tx, function, [number], {})
    if function in UNARY:
        return unary(tx, function, number)
    if len(args) != 1:
        return None
    other = args[0]
    result = binary(tx, function, other, number) if is_reflected else binary(tx, function, number, other)
    return ConstantVariable(NotImplemented) if result is None else result


_CONVERSIONS: dict[str, Callable[..., Any]] = {
    "__int__": builtins.int,
    "__index__": builtins.int,
    "__float__": builtins.float,
    "__floor__": math.floor,
    "__ceil__": math.ceil,
    "__trunc__": math.trunc,
    "__round__": round,
}
# method -> (function, whether the number is the right operand)
_METHODS: dict[str, tuple[Callable[..., Any], bool]] = {
    **{reflected: (function, True) for function, (_, reflected) in BINARY.items() if function is not operator.matmul},
    **{name: (function, False) for function, (name, _) in BINARY.items() if function is not operator.matmul},
    **{name: (function, False) for function, name in UNARY.items()},
    **{name: (function, False) for name, function in _CONVERSIONS.items()},
}
