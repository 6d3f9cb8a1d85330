"""Owns arithmetic and comparison of symbolic numbers.

Ints keep their symbols, so that sizes computed from sizes stay symbolic; each step is a graph node and a Python
expression. Floats are computed by Python alone, in the order of the program, and enter the graph as inputs. A
comparison guards its answer, not the numbers. `computed` tracks all results that Python computes, texts and numpy
scalars included. Any operation that is unknown here specializes the numbers. Functions and methods of numbers are not
here (`functions.py`)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, PlainValue, Source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import limit_comparisons
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.immutable_classes import NUMPY_SCALARS, REAL_NUMPY_SCALARS
from minidynamo.tracer.records.operator_table import ARITHMETIC, BITWISE, COMPARISONS
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, SequenceVariable, SetVariable, SliceVariable, TupleVariable

SYMBOLS = {function: symbol for symbol, function in (ARITHMETIC | BITWISE | COMPARISONS).items() if symbol != "@"}
_COMPARISONS = frozenset(COMPARISONS.values())
_BITS = frozenset(BITWISE.values())
_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)

# Classes whose values are compared without specializing -> kind; only values of the same kind are compared.
_COMPARABLE: dict[type, str] = {int: "number", float: "number", str: "text"}

# Characters with a meaning in templates.
_BRACES = frozenset("{}")

# Limits of an expression, beyond which its numbers are specialized. Python parses at most 200 nested parentheses, and
# some are written around the expression.
_LONGEST_EXPRESSION = 2000
_MOST_NESTED = 150


def involves_number(variable: VariableTracker) -> bool:
    """Returns whether the value is a symbolic number, or a container or slice with a symbolic number in it."""
    if isinstance(variable, NumberVariable):
        return True
    if isinstance(variable, SequenceVariable):
        return any(involves_number(item) for item in variable.items)
    if isinstance(variable, DictVariable):
        return any(involves_number(item) for item in variable.items.values())
    if isinstance(variable, SliceVariable):
        return any(isinstance(part, NumberVariable) for part in (variable.start, variable.stop, variable.step))
    return False


def specialized(variable: VariableTracker) -> VariableTracker:
    """Returns the variable; a symbolic number is specialized to a constant, with a guard."""
    if not isinstance(variable, NumberVariable):
        return variable
    if variable.specialized is None:
        source = None if isinstance(variable.source, Computed) else variable.source
        variable.specialized = ConstantVariable(variable.specialize(), source=source)
    return variable.specialized


def is_int_number(variable: VariableTracker) -> bool:
    """Returns whether the value is a symbolic int."""
    return isinstance(variable, NumberVariable) and variable.cls is int


def is_lazy(variable: VariableTracker) -> bool:
    """Returns whether the value is an external number or text that has not been read.

    A comparison may then guard the answer alone."""
    return isinstance(variable, ConstantVariable) and not variable.is_read and variable.python_type in _COMPARABLE


def is_lazy_scalar(variable: VariableTracker) -> bool:
    """Returns whether the value is a real numpy scalar that has not been read."""
    if not isinstance(variable, ConstantVariable) or variable.is_read:
        return False
    is_real = type(variable.unguarded_value) in REAL_NUMPY_SCALARS
    return is_real and not isinstance(variable.source, PlainValue | Constant | None)


def _is_number(variable: VariableTracker) -> bool:
    return isinstance(variable, NumberVariable | ConstantVariable) and variable.python_type in (int, float, bool)


def are_numbers(left: VariableTracker, right: VariableTracker) -> bool:
    """Returns whether both are numbers and at least one is symbolic."""
    is_known = not (isinstance(left, NumberVariable) or isinstance(right, NumberVariable))
    return not is_known and _is_number(left) and _is_number(right)


def _bool_as_int(variable: VariableTracker) -> VariableTracker:
    """Returns the variable, with True as 1 and False as 0, as in arithmetic; symbols have no bools."""
    is_bool = isinstance(variable, ConstantVariable) and variable.python_type is bool
    return ConstantVariable(int(as_constant(variable))) if is_bool else variable


def value_here(variable: VariableTracker) -> Any:
    """Returns the value in this call, without a guard."""
    assert isinstance(variable, NumberVariable | ConstantVariable)
    return variable.unguarded_value


def _is_float(variable: VariableTracker) -> bool:
    return variable.python_type is float


# Texts


def computed_text(template: str, *operands: VariableTracker | Source) -> Computed | None:
    """Returns `template` filled with the operands, each in parentheses; None if the expression is too long."""
    sources: list[Source] = []

    def slot(source: Source) -> str:
        if source not in sources:
            sources.append(source)
        return f"{{{sources.index(source)}}}"

    def operand(part: VariableTracker | Source) -> str:
        if isinstance(part, ConstantVariable) and not is_lazy(part) and not is_lazy_scalar(part):
            text = repr(part.value)
            is_numpy = type(part.value) in NUMPY_SCALARS
            if is_numpy or text in ("nan", "inf", "-inf") or not _BRACES.isdisjoint(text):
                return slot(Constant(part.value, text))
            return f"({text})" if text.startswith("-") else text
        source = part if isinstance(part, Source) else part.source
        assert source is not None
        if isinstance(source, Computed):
            return f"({source.template.format(*map(slot, source.operands))})"
        return slot(source)

    text = template.format(*map(operand, operands))
    is_short = len(text) <= _LONGEST_EXPRESSION and (text.count("(") <= _MOST_NESTED or _nesting(text) <= _MOST_NESTED)
    return Computed(text, tuple(sources)) if is_short else None


def _nesting(text: str) -> int:
    return max(itertools.accumulate((char == "(") - (char == ")") for char in text))


def require(tx: Tracer, template: str, answer: bool, *operands: VariableTracker | Source) -> bool:
    """Guards that the condition evaluates to `answer`; returns False if the expression is too long for a guard."""
    condition = computed_text(template, *operands)
    if condition is None:
        return False
    tx.graph.shapes.require(condition, answer)
    return True


def guard_distinct_nans(tx: Tracer, left: VariableTracker, right: VariableTracker) -> None:
    """Guards that two different floats are not the same NaN object, which a container finds by identity."""
    may_be_nan = [v for v in (left, right) if v.python_type is float and (isinstance(v, NumberVariable) or is_lazy(v))]
    if len(may_be_nan) == 2 and not require(tx, "{0} == {0}", True, left):
        as_constant(left)


# Results of Python


def computed(
    tx: Tracer,
    function: Callable[..., Any],
    template: str,
    operands: Sequence[VariableTracker],
    *others: Source,
    domain: str = "",
) -> VariableTracker | None:
    """Returns `function(*operands)`, which Python computes before the graph by the expression `template`.

    The template has a field per operand, then per source in `others`. None if the operands are outside of the domain,
    the function raises, or the expression is too long."""
    text = computed_text(template, *operands, *others)
    if text is None or not in_domain(tx, domain, operands):
        return None
    try:
        return tracked(tx, function(*map(value_here, operands)), text)
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        return None


def call_computed(
    tx: Tracer,
    function: Callable[..., Any],
    args: Sequence[VariableTracker],
    kwargs: Mapping[str, VariableTracker],
    domain: str = "",
) -> VariableTracker | None:
    """Returns `function(*args, **kwargs)`, as `computed` does. Arguments may be sequences of numbers and texts."""
    operands: list[VariableTracker] = []

    def field(arg: VariableTracker) -> str:
        if isinstance(arg, SequenceVariable):
            return f"({''.join(f'{field(item)}, ' for item in arg.items)})"
        operands.append(arg)
        return f"{{{len(operands) - 1}}}"

    def here(arg: VariableTracker) -> Any:
        return tuple(map(here, arg.items)) if isinstance(arg, SequenceVariable) else value_here(arg)

    def call(*_: Any) -> Any:
        return function(*map(here, args), **{name: here(arg) for name, arg in kwargs.items()})

    arguments = ", ".join([*map(field, args), *(f"{name}={field(arg)}" for name, arg in kwargs.items())])
    callee = Constant(function, getattr(function, "__name__", "text"))
    return computed(tx, call, f"{{{len(operands)}}}({arguments})", operands, callee, domain=domain)


def tracked(tx: Tracer, value: Any, source: Computed) -> VariableTracker | None:
    """Returns the tracker of a value that Python computes; None if no symbol has such values.

    Numbers are symbolic, True and False are guarded, and texts and numpy scalars are guarded when they are read."""
    if type(value) is float:
        return tx.graph.floating(value, source)
    if type(value) is int:
        return tx.graph.integer(value, source) if abs(value) < 2**62 else None
    if type(value) is bool:
        tx.graph.shapes.require(source, value)
        return ConstantVariable(value)
    if type(value) is tuple:
        sources = [Computed(f"({source.template})[{position}]", source.operands) for position in range(len(value))]
        parts = [part for pair in zip(value, sources) if (part := tracked(tx, *pair)) is not None]
        return TupleVariable(parts) if len(parts) == len(value) else None
    is_text = type(value) is str
    if not is_text and type(value) not in REAL_NUMPY_SCALARS:
        return None
    known = None if is_text else tx.graph.known(source)
    read = tx.graph.guard_on_read(source, GuardKind.EQUALS, value)
    return known or ConstantVariable(value, source=source, on_read=read)


def in_domain(tx: Tracer, domain: str, operands: Sequence[VariableTracker]) -> bool:
    """Guards a condition on the operands, or on each operand if it has one field; returns whether it holds."""
    groups = [operands] if "{1}" in domain else [[operand] for operand in operands]
    return not domain or all(_guard_first(tx, [domain], *group) for group in groups)


def _guard_first(tx: Tracer, conditions: Sequence[str], *operands: VariableTracker) -> bool:
    """Guards the first condition that is true in this call; returns whether any is."""
    names = [f"n{position}" for position in range(len(operands))]
    here = {"log": math.log, **dict(zip(names, map(value_here, operands)))}
    for condition in conditions:
        if eval(condition.format(*names, "log"), {}, here):
            varies = any(isinstance(operand, NumberVariable) or is_lazy(operand) for operand in operands)
            return not varies or require(tx, condition, True, *operands, Constant(math.log, "log"))
    return False


# Operators


def binary(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Returns `function(left, right)` for two numbers, at least one symbolic; None for anything else."""
    if function in _COMPARISONS and (is_lazy(left) or is_lazy(right)):
        compared = _compare_lazy(tx, function, left, right)
        if compared is not None:
            return compared
    if not are_numbers(left, right):
        return None
    left, right = _bool_as_int(left), _bool_as_int(right)
    result: VariableTracker | None = None
    if function in _DIVISIONS:
        guard_nonzero(tx, function, left, right)
    if function in _COMPARISONS:
        result = _compare(tx, function, left, right)
    elif function is operator.pow:
        result = _power(tx, left, right)
    elif function in _BITS:
        result = None if _is_float(left) or _is_float(right) else _bits(tx, function, left, right)
    elif function in SYMBOLS:
        exact = not (_is_float(left) or _is_float(right)) and function is not operator.truediv
        result = _integer(tx, function, left, right) if exact else _by_python(tx, function, left, right)
    return _as_constants(tx, function, left, right) if result is None else result


def _as_constants(tx: Tracer, function: Callable[..., Any], *operands: VariableTracker) -> VariableTracker:
    """Applies `function` to the specialized operands; returns an operand itself if its constant is the result."""
    constants = [specialized(operand) for operand in operands]
    result = tx.call(function, constants)
    return next((operand for operand, constant in zip(operands, constants) if constant is result), result)


def _by_python(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker, domain: str = ""
) -> VariableTracker | None:
    return computed(tx, function, f"{{0}} {SYMBOLS[function]} {{1}}", [left, right], domain=domain)


def guard_nonzero(tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker) -> None:
    """Guards that the divisor is not zero, or raises Python's error, for any dividend."""
    if _guarded_answer(tx, operator.ne, right, ConstantVariable(0)):
        return
    try:
        function(value_here(left), value_here(right))
    except ZeroDivisionError as error:
        tx.raises(error, exact=True)


def _integer(tx: Tracer, function: Callable[..., Any], *operands: VariableTracker) -> VariableTracker | None:
    """Applies an operation to symbols, as a graph node."""
    # A known power of symbols that exceeds 64-bit integers would be infinity to the symbols.
    if not tx.graph.takes_numbers or not abs(function(*map(value_here, operands))) < 2**62:
        return None
    values = [v.value for v in operands if isinstance(v, NumberVariable | ConstantVariable)]
    return tx.graph.number(function(*values), function, operands)


def _power(tx: Tracer, base: VariableTracker, exponent: VariableTracker) -> VariableTracker | None:
    constant = exponent.value if isinstance(exponent, ConstantVariable) else None
    is_exact = not (_is_float(base) or _is_float(exponent))
    if is_exact and value_here(exponent) >= 0:
        if type(constant) is int and constant <= 4:
            return _integer(tx, operator.pow, base, exponent)
        return _by_python(tx, operator.pow, base, exponent, _WHOLE_POWERS)
    return _by_python(tx, operator.pow, base, exponent) if guard_finite_power(tx, base, exponent) else None


def guard_finite_power(tx: Tracer, base: VariableTracker, exponent: VariableTracker) -> bool:
    """Guards that a power is a finite real number in the range of floats; returns whether it is."""
    constant = exponent.value if isinstance(exponent, ConstantVariable) else None
    conditions = [*_POWERS]
    if exponent.python_type is int:
        conditions = [*_OF_WHOLE_EXPONENTS, *conditions]
    if isinstance(constant, int | float):
        is_whole = isinstance(constant, int) or constant.is_integer()
        conditions = [*(_OF_CONSTANT_WHOLE_EXPONENTS if is_whole else _OF_CONSTANT_EXPONENTS), *conditions]
    return _guard_first(tx, conditions, base, exponent)


# Ranges in which a power raises no error, is not complex, and has the expected class.
_WHOLE_POWERS = f"0 <= {{1}} < 62 and -{2**62} < {{0}} ** {{1}} < {2**62}"
_OF_CONSTANT_WHOLE_EXPONENTS = (
    "-1e15 < {0} < 1e15 and 0 <= {1} <= 20",
    "1e-30 < {0} * {0} < 1e30 and -20 <= {1} < 0",
)
_OF_WHOLE_EXPONENTS = ("-1 <= {0} <= 1 and 0 <= {1} < 1e60",)
_OF_CONSTANT_EXPONENTS = ("0 <= {0} < 1e15 and 0 <= {1} <= 20", "1e-15 < {0} < 1e15 and -20 <= {1} < 0")
_POWERS = (
    "0 <= {0} <= 1 and 0 <= {1} < 1e60",
    "1e-60 < {0} < 1e60 and -700 < {1} * {2}({0}) < 700",
    "1 <= {0} < 1e60 and -1e60 < {1} <= 0",
)


def _bits(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Applies an operation on the bits of ints: as the equal arithmetic operation if there is one, because symbols
    support arithmetic alone."""
    if function is operator.and_ and isinstance(left, ConstantVariable):
        left, right = right, left
    known = right.value if isinstance(right, ConstantVariable) and 0 <= right.value < 2**61 else None
    if known is not None and function is operator.and_ and known & (known + 1) == 0:
        return tx.call(operator.mod, [left, ConstantVariable(known + 1)])
    if known is not None and known < 62 and function in (operator.lshift, operator.rshift):
        equal = operator.mul if function is operator.lshift else operator.floordiv
        return tx.call(equal, [left, ConstantVariable(2**known)])
    return _by_python(tx, function, left, right, _SHIFTS.get(function, ""))


_SHIFTS = {
    operator.lshift: f"0 <= {{1}} < 62 and -{2**62} < ({{0}} << {{1}}) < {2**62}",
    operator.rshift: "0 <= {1} < 62",
}


def _guarded_answer(tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker) -> bool:
    answer = _compare(tx, function, left, right)
    return bool(function(as_constant(left), as_constant(right)) if answer is None else as_constant(answer))


def _compare(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    if not isinstance(left, NumberVariable) and not isinstance(right, NumberVariable):
        return ConstantVariable(function(value_here(left), value_here(right)))
    limit_comparisons(tx)
    if not _is_float(left) and not _is_float(right):
        values = [v.value for v in (left, right) if isinstance(v, NumberVariable | ConstantVariable)]
        answer = bool(function(*values))
        tx.graph.shapes.report_decisions()
        return ConstantVariable(answer)
    return _by_python(tx, function, left, right)


def _compare_lazy(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Compares constants of the same kind, and guards the answer only."""
    kinds = {_COMPARABLE.get(variable.python_type) for variable in (left, right)}
    if not isinstance(left, ConstantVariable) or not isinstance(right, ConstantVariable):
        return None
    if len(kinds) != 1 or None in kinds:
        return None
    if _answer_determines_value(function, left, right):
        return ConstantVariable(bool(function(left.value, right.value)))
    limit_comparisons(tx)
    return _by_python(tx, function, left, right)


def _answer_determines_value(function: Callable[..., Any], left: ConstantVariable, right: ConstantVariable) -> bool:
    """Returns whether the answer determines the value: then a guard on the value is cheaper and no stricter."""
    if left.is_read == right.is_read or float in (left.python_type, right.python_type):
        return False
    both_bool = left.python_type is right.python_type is bool
    return both_bool or (function in (operator.eq, operator.ne) and left.unguarded_value == right.unguarded_value)


def truth_of_lazy(tx: Tracer, constant: ConstantVariable) -> bool:
    """Returns `bool(constant)`, with a guard on the answer."""
    empty = ConstantVariable(constant.python_type())
    answer = _compare_lazy(tx, operator.ne, constant, empty)
    return bool(as_constant(constant if answer is None else answer))


def truth(tx: Tracer, number: NumberVariable) -> bool:
    """Returns `bool(number)`, with a guard on the answer."""
    return _guarded_answer(tx, operator.ne, number, ConstantVariable(0))


def unary(tx: Tracer, function: Callable[..., Any], number: NumberVariable) -> VariableTracker:
    """Returns `-n`, `+n`, `abs(n)` or `~n`."""
    result: VariableTracker | None = None
    if function is operator.pos:
        return number
    if function is operator.invert and number.cls is int:
        return tx.call(operator.sub, [tx.call(operator.neg, [number]), ConstantVariable(1)])
    if number.cls is int and function in (operator.neg, abs):
        result = _integer(tx, function, number)
    elif function is operator.neg:
        result = computed(tx, function, "-{0}", [number])
    elif function is abs:
        result = call_computed(tx, abs, [number], {})
    return _as_constants(tx, function, number) if result is None else result


def min_or_max(
    tx: Tracer, function: Callable[..., Any], best: VariableTracker, item: VariableTracker
) -> VariableTracker | None:
    """Returns `min` or `max` of two numbers of the same class, without deciding which is smaller; None for all else."""
    if not (isinstance(best, NumberVariable) or isinstance(item, NumberVariable)):
        return None
    if not (_is_number(best) and _is_number(item)) or best.python_type is not item.python_type:
        return None
    if best.python_type is int:
        return _integer(tx, _OF_SYMBOLS[function], best, item)
    return call_computed(tx, function, [best, item], {})


_OF_SYMBOLS: dict[Callable[..., Any], Callable[..., Any]] = {min: torch.sym_min, max: torch.sym_max}


def guarded_membership(tx: Tracer, item: VariableTracker, items: Sequence[object]) -> VariableTracker | None:
    """Returns `item in items` for a number or text and constants; the guard checks the answer, not the value."""
    comparable = (str,) if item.python_type is str else (int, float, bool)
    others = [other for other in items if type(other) in comparable]
    text = ", ".join(map(repr, others))
    if any(type(other) is float and not math.isfinite(other) for other in others) or not _BRACES.isdisjoint(text):
        return None
    return computed(tx, others.__contains__, f"{{0}} in ({text}{',' * (len(others) == 1)})", [item])


def constant_items(container: VariableTracker) -> Sequence[object] | None:
    """Returns the items of a tuple, list or set of constants; None for anything else."""
    if isinstance(container, SequenceVariable):
        parts: Sequence[VariableTracker] = container.items
    elif isinstance(container, SetVariable):
        parts = [key.variable for key in container.items]
    else:
        return None
    values = [part.value for part in parts if isinstance(part, ConstantVariable)]
    return values if len(values) == len(parts) else None
