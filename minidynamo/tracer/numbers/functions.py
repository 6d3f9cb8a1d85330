"""Owns functions and methods of symbolic numbers: `int`, `round`, `math`, `__index__`.

A function is computed by Python in the range in which it cannot raise, and the range is guarded; outside the range the
number is specialized. Operators are not here (`arithmetic.py`)."""

from __future__ import annotations

import builtins
import collections
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import limit_loop
from minidynamo.tracer.numbers import graph_numbers, numpy_numbers
from minidynamo.tracer.numbers.arithmetic import (
    are_numbers,
    binary,
    call_computed,
    guard_finite_power,
    guard_nonzero,
    in_domain,
    involves_number,
    require,
    unary,
    value_here,
)
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant
from minidynamo.tracer.records.operator_table import BINARY, UNARY
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, TupleVariable

# Ranges in which functions raise no error and return numbers of the expected class and size.
_POSITIVE, _ANY, _SMALL = "0 < {0} < 1e300", "-1e300 < {0} < 1e300", "-700 < {0} < 700"
_SHORT, _WHOLE = f"-{2**31} < {{0}} < {2**31}", "-4.5e15 < {0} < 4.5e15"

# Pattern of the arguments' classes, `i` for int and `f` for float; domain; functions, called before the graph.
# A domain with one field is guarded for each argument. Of a predicate the answer is guarded.
_ROWS: list[tuple[str, str, tuple[Callable[..., Any], ...]]] = [
    ("f", _WHOLE, (builtins.int, round, math.floor, math.ceil, math.trunc)),
    ("fi", "-1e300 < {0} < 1e300 and -300 < {1} < 300", (round,)),
    ("i", "", (builtins.float,)),
    (".", "0 <= {0} < 1e300", (math.sqrt,)),
    (".", _POSITIVE, (math.log, math.log2, math.log10, math.lgamma)),
    ("..", "0 < {0} < 1e300 and 0 < {1} < 1e300 and {1} != 1", (math.log,)),
    (".", _ANY, (math.sin, math.cos, math.tan, math.tanh, math.atan, math.asinh, math.fabs, math.erf, math.erfc)),
    (".", _ANY, (math.cbrt, math.radians, math.degrees, math.ulp, math.modf, math.frexp)),
    (".", _SMALL, (math.exp, math.exp2, math.expm1, math.sinh, math.cosh)),
    (".", "-1 <= {0} <= 1", (math.asin, math.acos)),
    (".", "1 <= {0} < 1e300", (math.acosh,)),
    (".", "-1 < {0} < 1", (math.atanh,)),
    (".", "-1 < {0} < 1e300", (math.log1p,)),
    (".", "0 < {0} < 170", (math.gamma,)),
    ("..", "-1e300 < {0} < 1e300 and {1} != 0", (math.fmod, math.remainder)),
    ("..", _ANY, (math.atan2, math.copysign, math.nextafter)),
    ("..+", _ANY, (math.hypot,)),
    ("fi", "-1e100 < {0} < 1e100 and -600 < {1} < 600", (math.ldexp,)),
    ("..", "", (math.pow,)),  # see `guard_finite_power`
    ("i", f"0 <= {{0}} < {2**62}", (math.isqrt, int.bit_length, int.bit_count)),
    ("i", "0 <= {0} <= 20", (math.factorial,)),
    ("ii", f"0 < {{0}} < {2**62}", (math.gcd,)),
    ("ii", f"0 < {{0}} < {2**31}", (math.lcm,)),
    ("ii", f"(0 <= {{0}} < 62 and 0 <= {{1}} < 62 or 0 <= {{0}} < {2**30} and 0 <= {{1}} <= 2)", (math.comb,)),
    ("ii", f"(0 <= {{0}} <= 20 and 0 <= {{1}} <= 20 or 0 <= {{0}} < {2**30} and 0 <= {{1}} <= 2)", (math.perm,)),
    ("f", "", (math.isnan, math.isinf, math.isfinite, float.is_integer)),
    ("ff+", "", (math.isclose,)),
]
# Functions that return a number of this class itself.
_UNCHANGED: dict[Callable[..., Any], type] = {
    **dict.fromkeys((builtins.int, round, math.floor, math.ceil, math.trunc, operator.index), int),
    builtins.float: float,
}
_LIST_FUNCTIONS = (math.fsum, math.dist)
_ASSOCIATIVE = (math.gcd, math.lcm)
# Functions of torch that are functions of Python for numbers.
_PYTHON: dict[Any, Callable[..., Any]] = {torch.sym_int: builtins.int, torch.sym_float: builtins.float}
_OF_ROWS = (function for *_, functions in _ROWS for function in functions)
_KNOWN = frozenset((*_OF_ROWS, *_UNCHANGED, *_LIST_FUNCTIONS, *_PYTHON))


def _tensor(
    tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Makes a tensor from numbers: by `torch.full` per number if the result is the same, otherwise from constants."""
    facts = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    if len(args) == 1 and facts.keys() <= {"dtype", "device"}:
        full = _stacked(tx, args[0], facts) if isinstance(args[0], SequenceVariable) else _full(tx, args[0], facts)
        if full is not None:
            requires_grad = kwargs.get("requires_grad")
            return full if requires_grad is None else tx.call_method(full, "requires_grad_", [requires_grad])
    try:
        constants = from_constant(as_constant(args[0]))
    except NotConstant:
        return None
    return tx.call(function, [constants, *args[1:]], kwargs)


def _stacked(tx: Tracer, numbers: SequenceVariable, kwargs: Mapping[str, VariableTracker]) -> VariableTracker | None:
    """Makes a tensor from nested lists of ints and floats."""
    items = [*_leaves(numbers)]
    classes = {number.python_type for number in items}
    if not classes <= {int, float} or len(items) > _LONGEST_LIST or _shape(numbers) is None:
        return None
    dtype_argument = kwargs.get("dtype", ConstantVariable(None))
    if isinstance(dtype_argument, ConstantVariable) and dtype_argument.value is None and float in classes:
        kwargs = {**kwargs, "dtype": from_constant(torch.get_default_dtype())}
    filled = [_full(tx, number, kwargs) for number in items]
    tensors = [tensor for tensor in filled if tensor is not None]
    return _nested(tx, numbers, iter(tensors)) if len(tensors) == len(items) else None


def _leaves(nested: VariableTracker) -> Iterator[VariableTracker]:
    if isinstance(nested, SequenceVariable):
        for item in nested.items:
            yield from _leaves(item)
    else:
        yield nested


def _shape(nested: VariableTracker) -> tuple[int, ...] | None:
    """Returns the lengths of nested lists; None for ragged lists, or lists of another class."""
    if not isinstance(nested, SequenceVariable):
        return ()
    shapes = {_shape(item) for item in nested.items}
    if len(shapes) != 1 or None in shapes or nested.cls not in (list, tuple, collections.deque):
        return None
    return (len(nested.items), *(shapes.pop() or ()))


def _nested(tx: Tracer, nested: VariableTracker, tensors: Iterator[VariableTracker]) -> VariableTracker:
    if not isinstance(nested, SequenceVariable):
        return next(tensors)
    return tx.emit(torch.stack, [TupleVariable([_nested(tx, item, tensors) for item in nested.items])], {})


def _full(tx: Tracer, number: VariableTracker, kwargs: Mapping[str, VariableTracker]) -> VariableTracker | None:
    if not isinstance(number, NumberVariable | ConstantVariable) or number.python_type not in (int, float):
        return None
    dtype_argument = kwargs.get("dtype", ConstantVariable(None))
    dtype = dtype_argument.value if isinstance(dtype_argument, ConstantVariable) else None
    is_int = number.python_type is int
    if dtype is None:
        dtype = torch.int64 if is_int else torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        return None
    if dtype is torch.bool:
        return tx.emit(torch.full, [TupleVariable([]), tx.call(bool, [number])], {**kwargs, "dtype": dtype_argument})
    if dtype.is_floating_point:
        largest = min(torch.finfo(dtype).max, 2**53) if is_int else torch.finfo(dtype).max
    else:
        largest = min(torch.iinfo(dtype).max, 2**62 if is_int else 2**53)
    smallest = 0 if dtype in _UNSIGNED else -largest
    if not smallest <= value_here(number) <= largest:
        return None
    varies = isinstance(number, NumberVariable)
    if varies and not require(tx, f"{smallest} <= {{0}} <= {largest}", True, number):
        return None
    if not dtype.is_floating_point and not is_int:
        number = tx.call(int, [number])
    return tx.emit(torch.full, [TupleVariable([]), number], {**kwargs, "dtype": from_constant(dtype)})


def total(tx: Tracer, numbers: Sequence[VariableTracker], start: VariableTracker) -> VariableTracker | None:
    """Returns `sum` of numbers, some symbolic; None if constants are needed."""
    operands = [*numbers, start]
    if not numbers:
        return start
    if not all(isinstance(v, NumberVariable | ConstantVariable) for v in operands):
        return None
    classes = {operand.python_type for operand in operands}
    if classes <= {int, bool}:
        return functools.reduce(lambda sum_, part: tx.call(operator.add, [sum_, part]), numbers, start)
    if not classes <= {int, bool, float}:
        return None
    # Python's own `sum` is called, because it compensates rounding errors of floats from 3.12 on.
    return call_computed(tx, sum, [TupleVariable([*numbers]), start], {})


def _call_on_lists(tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker]) -> VariableTracker | None:
    """Applies a function from lists of numbers to a float; None if constants are needed."""
    lists = [arg for arg in args if isinstance(arg, SequenceVariable) and arg.cls in (list, tuple)]
    operands = [number for items in lists for number in items.items]
    known = all(isinstance(v, NumberVariable | ConstantVariable) for v in operands)
    if len(lists) < len(args) or not known or not {v.python_type for v in operands} <= {int, bool, float}:
        return None
    return call_computed(tx, function, args, {}, domain=_ANY)


# Functions that make a tensor of one element from a float, which torch would specialize.
_TENSORS = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)
# The longest list of symbolic numbers in a tensor, because each number is an operation; longer lists are constants.
_LONGEST_LIST = 64
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def call(
    tx: Tracer, function: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Applies a function to numbers; None if the function is unknown here."""
    item = graph_numbers.call(tx, function, args, kwargs)
    if item is not None:
        return item
    if function is divmod and len(args) == 2 and not kwargs and are_numbers(*args):
        guard_nonzero(tx, divmod, *args)
        return TupleVariable([tx.call(part, args) for part in (operator.floordiv, operator.mod)])
    if args and any(function is constructor for constructor in _TENSORS):
        if isinstance(args[0], SequenceVariable):
            limit_loop(tx, args[0], "a tensor of a list")
        if involves_number(args[0]):
            return _tensor(tx, function, args, kwargs)
    if not kwargs and any(function is cls for cls in (*numpy_numbers.FLOATS, *numpy_numbers.INTS)):
        varying = [arg for arg in args if isinstance(arg, NumberVariable)]
        fits = len(args) == 1 if function in numpy_numbers.FLOATS else in_domain(tx, _SHORT, varying)
        return numpy_numbers.numpy_call(tx, function, args) if fits else None
    if not is_known(function):
        return None
    if function in _LIST_FUNCTIONS:
        return _call_on_lists(tx, function, args) if any(map(involves_number, args)) and not kwargs else None
    if function is not round:  # round() calls numpy's `__round__`
        args = [numpy_numbers.python_number(tx, arg) or arg for arg in args]
    return _call_known(tx, _PYTHON.get(function, function), args, kwargs)


def _call_known(
    tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Applies a function of the table; None if the arguments have no row, or are outside of the domain."""
    operands = [*args, *kwargs.values()]
    if not any(isinstance(operand, NumberVariable) for operand in operands):
        return None
    if not all(isinstance(operand, NumberVariable | ConstantVariable) for operand in operands):
        return None
    classes = [operand.python_type for operand in operands]
    if _UNCHANGED.get(function) in classes and len(classes) == 1:
        return operands[0]
    if function in _ASSOCIATIVE and len(args) > 2 and not kwargs:
        return functools.reduce(lambda left, right: tx.call(function, [left, right]), args)
    kinds = "".join({int: "i", float: "f"}.get(cls, "") for cls in classes)
    domain = next((domain for kind, domain, row in _ROWS if function in row and re.fullmatch(kind, kinds)), None)
    if domain is None or len(kinds) < len(classes):
        return None
    if function is math.pow and not guard_finite_power(tx, *args):
        return None
    return call_computed(tx, function, args, kwargs, domain=domain)


def is_known(function: Any) -> bool:
    """Returns whether the function is in the tables of this module."""
    return getattr(function, "__hash__", None) is not None and function in _KNOWN


def attribute(number: NumberVariable, name: str) -> VariableTracker | None:
    """Returns `number.real` and similar attributes; None for any other attribute."""
    if name == "real" or (name == "numerator" and number.cls is int):
        return number
    if name == "imag":
        return ConstantVariable(number.cls(0))
    return ConstantVariable(1) if name == "denominator" and number.cls is int else None


def call_method(
    tx: Tracer, number: NumberVariable, name: str, args: Sequence[VariableTracker]
) -> VariableTracker | None:
    """Calls a special method of a number; None if constants are needed."""
    plain = _METHODS.get(name)
    if name == "conjugate" and not args:
        return number
    if plain is None:
        method = getattr(number.cls, name, None)
        return call(tx, method, [number, *args], {}) if is_known(method) else None
    function, is_reflected = plain
    if name in _CONVERSIONS:
        return call(tx, function, [number, *args], {}) if name == "__round__" or not args else None
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
