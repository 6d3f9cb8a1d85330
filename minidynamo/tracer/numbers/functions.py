"""Owns functions and methods of symbolic numbers: `int`, `round`, `math`, `__index__`.

A function is computed by Python in the range in which it cannot raise, and the range is guarded; outside the range the
number is specialized. Operators are not here (`arithmetic.py`)."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from minidynamo.guards.source import Constant, Source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers import numpy_numbers
from minidynamo.tracer.numbers.arithmetic import (
    are_numbers,
    binary,
    computed_text,
    floating,
    guard_finite_power,
    guard_nonzero,
    involves_number,
    require,
    unary,
    value_here,
)
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant
from minidynamo.tracer.records.operator_table import BINARY, UNARY
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable


def _rounding_handler(function: Callable[..., Any]) -> Callable[[Tracer, NumberVariable], VariableTracker | None]:
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
    if not abs(number.unguarded_value) < 2**62:
        return None
    return floating(
        tx, builtins.float(number.unguarded_value), computed_text("{0}({1})", Constant(builtins.float, "float"), number)
    )


_SHORT = f"-{2**31} < {{0}} < {2**31}"
_POSITIVE, _ANY, _SMALL = "0 < {0} < 1e300", "-1e300 < {0} < 1e300", "-700 < {0} < 700"
_ONE_NUMBER: dict[Callable[..., Any], Callable[[Tracer, NumberVariable], VariableTracker | None]] = {
    builtins.int: _rounding_handler(builtins.int),
    round: _rounding_handler(round),
    math.floor: _rounding_handler(math.floor),
    math.ceil: _rounding_handler(math.ceil),
    math.trunc: _rounding_handler(math.trunc),
    math.modf: lambda tx, number: _two_results(tx, math.modf, number),
    math.frexp: lambda tx, number: _two_results(tx, math.frexp, number),
    builtins.float: _as_float,
    operator.index: lambda tx, number: number if number.cls is int else None,
    torch.sym_int: _rounding_handler(builtins.int),
    torch.sym_float: _as_float,
}
# Functions that return a float -> the range without errors.
_UNARY_FLOAT_DOMAINS: dict[Callable[..., Any], str] = {
    math.sqrt: "0 <= {0} < 1e300",
    **dict.fromkeys((math.log, math.log2, math.log10), _POSITIVE),
    **dict.fromkeys((math.sin, math.cos, math.tan, math.tanh, math.atan, math.asinh, math.fabs), _ANY),
    **dict.fromkeys((math.erf, math.erfc, math.cbrt, math.radians, math.degrees), _ANY),
    **dict.fromkeys((math.exp, math.exp2, math.expm1, math.sinh, math.cosh), _SMALL),
    **dict.fromkeys((math.asin, math.acos), "-1 <= {0} <= 1"),
    math.acosh: "1 <= {0} < 1e300",
    math.atanh: "-1 < {0} < 1",
    math.log1p: "-1 < {0} < 1e300",
    math.gamma: "0 < {0} < 170",
    math.lgamma: _POSITIVE,
    math.ulp: _ANY,
}
_BINARY_FLOAT_DOMAINS: dict[Callable[..., Any], str] = {
    math.log: "0 < {0} < 1e300 and 0 < {1} < 1e300 and {1} != 1",
    **dict.fromkeys((math.fmod, math.remainder), "-1e300 < {0} < 1e300 and {1} != 0"),
    **dict.fromkeys((math.atan2, math.hypot, math.copysign), "-1e300 < {0} < 1e300 and -1e300 < {1} < 1e300"),
    math.nextafter: "-1e300 < {0} < 1e300 and -1e300 < {1} < 1e300",
    math.ldexp: "-1e100 < {0} < 1e100 and -600 < {1} < 600",
    round: "-1e300 < {0} < 1e300 and -300 < {1} < 300",
}
_WITH_AN_INT = (round, math.ldexp)
# Functions of ints that return an int -> the range without errors and with small results.
_UNARY_INT_DOMAINS: dict[Callable[..., Any], str] = {
    **dict.fromkeys((math.isqrt, int.bit_length, int.bit_count), f"0 <= {{0}} < {2**62}"),
    math.factorial: "0 <= {0} <= 20",
}
_BINARY_INT_DOMAINS: dict[Callable[..., Any], str] = {
    math.gcd: f"0 < {{0}} < {2**62} and 0 < {{1}} < {2**62}",
    math.lcm: f"0 < {{0}} < {2**31} and 0 < {{1}} < {2**31}",
    math.comb: f"(0 <= {{0}} < 62 and 0 <= {{1}} < 62 or 0 <= {{0}} < {2**30} and 0 <= {{1}} <= 2)",
    math.perm: f"(0 <= {{0}} <= 20 and 0 <= {{1}} <= 20 or 0 <= {{0}} < {2**30} and 0 <= {{1}} <= 2)",
}
# Predicates on floats: the answer is guarded, not the number.
_PREDICATES = frozenset((math.isnan, math.isinf, math.isfinite, math.isclose, float.is_integer))


def _tensor(
    tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Makes a tensor from numbers: by `torch.full` per number if the result is the same, otherwise from constants."""
    facts = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    if len(args) == 1 and facts.keys() <= {"dtype", "device"}:
        full = _stacked(tx, args[0], facts) if isinstance(args[0], SequenceVariable) else _full(tx, args[0], facts)
        if full is not None:
            wanted = kwargs.get("requires_grad")
            return full if wanted is None else tx.call_method(full, "requires_grad_", [wanted])
    try:
        constants = from_constant(as_constant(args[0]))
    except NotConstant:
        return None
    return tx.call(function, [constants, *args[1:]], kwargs)


def _stacked(tx: Tracer, numbers: SequenceVariable, kwargs: Mapping[str, VariableTracker]) -> VariableTracker | None:
    """Makes a tensor from nested lists of ints and floats."""
    found = [*_leaves(numbers)]
    classes = {number.python_type for number in found}
    if not classes <= {int, float} or len(found) > _LONGEST_LIST or _shape(numbers) is None:
        return None
    given = kwargs.get("dtype", ConstantVariable(None))
    if isinstance(given, ConstantVariable) and given.value is None and float in classes:
        kwargs = {**kwargs, "dtype": from_constant(torch.get_default_dtype())}
    made = [_full(tx, number, kwargs) for number in found]
    tensors = [tensor for tensor in made if tensor is not None]
    return _nested(tx, numbers, iter(tensors)) if len(tensors) == len(found) else None


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
    if len(shapes) != 1 or None in shapes or nested.cls not in (list, tuple):
        return None
    return (len(nested.items), *(shapes.pop() or ()))


def _nested(tx: Tracer, nested: VariableTracker, tensors: Iterator[VariableTracker]) -> VariableTracker:
    if not isinstance(nested, SequenceVariable):
        return next(tensors)
    return tx.emit(torch.stack, [TupleVariable([_nested(tx, item, tensors) for item in nested.items])], {})


def _full(tx: Tracer, number: VariableTracker, kwargs: Mapping[str, VariableTracker]) -> VariableTracker | None:
    if not isinstance(number, NumberVariable | ConstantVariable) or number.python_type not in (int, float):
        return None
    given = kwargs.get("dtype", ConstantVariable(None))
    dtype = given.value if isinstance(given, ConstantVariable) else None
    is_int = number.python_type is int
    if dtype is None:
        dtype = torch.int64 if is_int else torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        return None
    if dtype is torch.bool:
        return tx.emit(torch.full, [TupleVariable([]), tx.call(bool, [number])], {**kwargs, "dtype": given})
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


def _call_in_domain(
    tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker]
) -> VariableTracker | None:
    """Returns the result of a function that Python calls before the graph; None if the function may raise."""
    classes = [arg.python_type for arg in args]
    track: Callable[[Any, Source], VariableTracker]
    floats = {1: _UNARY_FLOAT_DOMAINS, 2: _BINARY_FLOAT_DOMAINS}.get(len(args), {})
    ints = {1: _UNARY_INT_DOMAINS, 2: _BINARY_INT_DOMAINS}.get(len(args), {})
    if function in floats and {*classes} <= {int, float} and (function not in _WITH_AN_INT or classes == [float, int]):
        condition, track = floats[function], tx.graph.floating
    elif function in ints and {*classes} == {int}:
        condition, track = ints[function], tx.graph.integer
    else:
        return None
    text = computed_text(_call_text(len(args), ()), *args, Constant(function, function.__name__))
    here = [value_here(arg) for arg in args]
    if text is None or not eval(condition.format("here[0]", "here[-1]"), {}, {"here": here}):
        return None
    return track(function(*here), text) if require(tx, condition, True, *args) else None


def _call_predicate(
    tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Returns the answer of a predicate on floats, with a guard."""
    operands = [*args, *kwargs.values()]
    if any(operand.python_type is not float for operand in operands):
        return None
    try:
        answer = function(*map(value_here, args), **{name: value_here(arg) for name, arg in kwargs.items()})
    except (TypeError, ValueError):
        return None
    template = _call_text(len(args), tuple(kwargs))
    known = require(tx, template, answer, *operands, Constant(function, function.__name__))
    return ConstantVariable(answer) if known else None


def _call_text(count: int, names: Sequence[str]) -> str:
    """Returns the template of a call with `count` arguments and keywords; the last operand is the function."""
    taken = [f"{{{k}}}" for k in range(count)]
    taken += [f"{name}={{{k}}}" for k, name in enumerate(names, count)]
    return f"{{{count + len(names)}}}({', '.join(taken)})"


def _power(tx: Tracer, args: Sequence[VariableTracker]) -> VariableTracker | None:
    if len(args) != 2 or not {arg.python_type for arg in args} <= {int, float} or not guard_finite_power(tx, *args):
        return None
    return floating(
        tx, math.pow(*map(value_here, args)), computed_text(_call_text(2, ()), *args, Constant(math.pow, "pow"))
    )


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
    try:
        value = sum(map(value_here, numbers), value_here(start))
    except ArithmeticError:
        return None
    # Python's own `sum` is called, because it compensates rounding errors of floats from 3.12 on.
    items = ", ".join(f"{{{k}}}" for k in range(len(numbers)))
    template = f"{{{len(operands)}}}(({items},), {{{len(numbers)}}})"
    return floating(tx, value, computed_text(template, *operands, Constant(sum, "sum")))


def _call_on_lists(tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker]) -> VariableTracker | None:
    """Applies a function from lists of numbers to a float; None if constants are needed."""
    lists = [arg for arg in args if isinstance(arg, SequenceVariable) and arg.cls in (list, tuple)]
    operands = [number for items in lists for number in items.items]
    known = all(isinstance(v, NumberVariable | ConstantVariable) for v in operands)
    if len(lists) < len(args) or not known or not {v.python_type for v in operands} <= {int, bool, float}:
        return None
    numbers = iter(range(len(operands)))
    listed = ", ".join(f"({''.join(f'{{{next(numbers)}}}, ' for _ in items.items)})" for items in lists)
    text = computed_text(f"{{{len(operands)}}}({listed})", *operands, Constant(function, function.__name__))
    try:
        value = function(*[[*map(value_here, items.items)] for items in lists])
    except (ArithmeticError, ValueError):
        return None
    return floating(tx, value, text) if _guard_range(tx, _ANY, operands) else None


def _guard_range(tx: Tracer, condition: str, operands: Sequence[VariableTracker]) -> bool:
    varying = [operand for operand in operands if isinstance(operand, NumberVariable)]
    here = all(eval(condition.format("n"), {}, {"n": number.unguarded_value}) for number in varying)
    return here and bool(operands) and all(require(tx, condition, True, number) for number in varying)


def _two_results(tx: Tracer, function: Callable[..., Any], number: NumberVariable) -> VariableTracker | None:
    """Applies a function that returns two numbers."""
    if not _guard_range(tx, _ANY, [number]):
        return None
    made: list[VariableTracker] = []
    for position, part in enumerate(function(number.unguarded_value)):
        text = computed_text(f"{{1}}({{0}})[{position}]", number, Constant(function, function.__name__))
        if text is None:
            return None
        made.append(tx.graph.floating(part, text) if type(part) is float else tx.graph.integer(part, text))
    return TupleVariable(made)


_LIST_FUNCTIONS = (math.fsum, math.dist)
_ASSOCIATIVE = (math.gcd, math.lcm)
_TABLES = (_ONE_NUMBER, _UNARY_FLOAT_DOMAINS, _BINARY_FLOAT_DOMAINS, _UNARY_INT_DOMAINS, _BINARY_INT_DOMAINS)
_KNOWN = frozenset((math.pow, *_LIST_FUNCTIONS, *_PREDICATES, *(function for table in _TABLES for function in table)))

# Functions that make a tensor of one element from a float, which torch would specialize.
_TENSORS = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)
# The longest list of symbolic numbers in a tensor, because each number is an operation; longer lists are constants.
_LONGEST_LIST = 64
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def call(
    tx: Tracer, function: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """Applies a function to numbers; None if the function is unknown here."""
    if function is divmod and len(args) == 2 and not kwargs and are_numbers(*args):
        guard_nonzero(tx, divmod, *args)
        return TupleVariable([tx.call(part, args) for part in (operator.floordiv, operator.mod)])
    if args and any(function is maker for maker in _TENSORS) and involves_number(args[0]):
        return _tensor(tx, function, args, kwargs)
    if len(args) == 1 and not kwargs and any(function is cls for cls in numpy_numbers.FLOATS):
        return numpy_numbers.numpy_call(tx, function, args)
    if any(function is cls for cls in numpy_numbers.INTS) and not kwargs and _guard_range(tx, _SHORT, args):
        return numpy_numbers.numpy_call(tx, function, args)
    if not kwargs and is_known(function) and function in _LIST_FUNCTIONS and any(map(involves_number, args)):
        return _call_on_lists(tx, function, args)
    if function is not round and is_known(function):  # round() calls numpy's `__round__`
        args = [numpy_numbers.python_number(tx, arg) or arg for arg in args]
    if not any(isinstance(arg, NumberVariable) for arg in (*args, *kwargs.values())):
        return None
    if not is_known(function):
        return None
    operands = [*args, *kwargs.values()]
    if not all(isinstance(v, NumberVariable | ConstantVariable) for v in operands):
        return None
    if function in _PREDICATES:
        return _call_predicate(tx, function, args, kwargs)
    if kwargs:
        return None
    if function is math.pow:
        return _power(tx, args)
    if function in _ASSOCIATIVE and len(args) > 2:
        return functools.reduce(lambda one, other: tx.call(function, [one, other]), args)
    if function is math.hypot and len(args) > 2 and _guard_range(tx, _ANY, args):
        text = computed_text(_call_text(len(args), ()), *args, Constant(function, function.__name__))
        return floating(tx, function(*map(value_here, args)), text)
    known = _ONE_NUMBER.get(function) if len(args) == 1 else None
    if known is not None and isinstance(args[0], NumberVariable):
        return known(tx, args[0])
    return _call_in_domain(tx, function, args)


def is_known(function: Any) -> bool:
    """Returns whether the function is in the tables of this module."""
    return getattr(function, "__hash__", None) is not None and function in _KNOWN


def part(number: NumberVariable, name: str) -> VariableTracker | None:
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
    if function in _ONE_NUMBER and not args:
        return call(tx, function, [number], {})
    if function is round:
        return call(tx, round, [number, *args], {})
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
