"""Owns the table of Python's operators: symbol, function, and special methods.

`tracer/calls/operators.py` implements calls of these functions, `tracer/numbers/arithmetic.py` for symbolic numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "@": operator.matmul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
BITWISE: dict[str, Callable[..., Any]] = {
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
# The comparison that is called on the right operand.
_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}


def _name(function: Callable[..., Any]) -> str:
    return function.__name__.strip("_")


# operator -> (method of the left operand, method of the right one)
BINARY = {
    **{f: (f"__{_name(f)}__", f"__r{_name(f)}__") for f in (ARITHMETIC | BITWISE).values()},
    **{f: (f"__{_name(f)}__", f"__{_name(COMPARISONS[_MIRRORED[symbol]])}__") for symbol, f in COMPARISONS.items()},
}
# symbol -> operator in place
AUGMENTED = {f"{symbol}=": getattr(operator, f"i{_name(f)}") for symbol, f in (ARITHMETIC | BITWISE).items()}
# operator in place -> (method, operator to fall back to)
IN_PLACE = {getattr(operator, f"i{_name(f)}"): (f"__i{_name(f)}__", f) for f in (ARITHMETIC | BITWISE).values()}
UNARY: dict[Callable[..., Any], str] = {
    f: f"__{_name(f)}__" for f in (operator.neg, operator.pos, operator.invert, abs)
}
