"""Owns the notation of lowerings for formulas: ordinary Python arithmetic on expressions.

`V` wraps an Expr of a computing dtype (float32, float64, an integer type or bool). Python numbers become literals of
the dtype. The functions here have the names of the rows of OPS; no ATen operations here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from minidynamo.codegen.ir.expr import HALF, OPS, Cast, Const, Expr, IndexValue, Op, kind_of
from minidynamo.codegen.ir.index import Index
from minidynamo.codegen.ir.size import Extent, Size, exact, known_at_least, known_less
from minidynamo.core.records import record

Known = bool | int | float
Number = Known | Size
"""The operands of a formula besides elements. A float that is known at run time only is a V."""


class NotLowered(Exception):
    """Raised by a lowering for a call that has no loop form; the call becomes an extern call."""


ON_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and"}
"""The meaning of arithmetic on bools, as in eager."""


def is_half(dtype: torch.dtype) -> bool:
    """Returns whether `dtype` is a half type; kernels compute with half types in float32."""
    return dtype in HALF


def opmath(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which eager computes: float32 for half types, otherwise the dtype itself."""
    return torch.float32 if is_half(dtype) else dtype


def literal(value: Known, dtype: torch.dtype) -> Const:
    """Returns `value` rounded or wrapped to `dtype` as in torch."""
    if dtype == torch.bool:
        return Const(bool(value), dtype)
    if dtype.is_floating_point:
        whole = isinstance(value, int) and abs(value) < 2**63  # rounded once, without a first rounding to float64
        wide = torch.int64 if whole else torch.float64
        return Const(float(torch.tensor(value, dtype=wide, device="cpu").to(dtype).item()), dtype)
    number = int(value)
    bits = torch.iinfo(dtype).bits
    number &= (1 << bits) - 1
    if dtype != torch.uint8 and number >> (bits - 1):
        number -= 1 << bits
    return Const(number, dtype)


def operand(value: V | Number, dtype: torch.dtype) -> Expr:
    """Returns the expression of a V, or a number converted to `dtype` as in torch.

    Raises NotLowered for a number out of range: some operations of eager then raise an error.
    """
    if isinstance(value, V):
        return value.expr
    if isinstance(value, Size):
        return V(IndexValue(Index((), exact(value)), torch.int64)).to(dtype).expr
    if not fits(value, dtype):
        raise NotLowered
    return literal(value, dtype)


def fits(value: Known, dtype: torch.dtype) -> bool:
    """Returns whether torch converts a number to `dtype` without an error. A negative integer wraps if `dtype` is
    unsigned."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    lowest = -limits.max if limits.min == 0 and isinstance(value, int) else limits.min
    return math.isfinite(value) and lowest <= value <= limits.max


def all_fit(numbers: torch.dtype, dtype: torch.dtype) -> bool:
    """Returns whether torch converts all values of the dtype `numbers` to `dtype` without an error."""
    if torch.bool in (numbers, dtype):
        return True
    if numbers.is_floating_point and not dtype.is_floating_point:
        return False
    limits = torch.finfo(numbers) if numbers.is_floating_point else torch.iinfo(numbers)
    return fits(limits.min, dtype) and fits(limits.max, dtype)


def identity(combine: str, dtype: torch.dtype) -> Const:
    """Returns the result of a fold of no elements: the neutral element of the fold."""
    if combine in ("max", "min"):
        if dtype.is_floating_point:
            return literal(-math.inf if combine == "max" else math.inf, dtype)
        if dtype == torch.bool:
            return literal(combine == "min", dtype)
        limits = torch.iinfo(dtype)
        return literal(limits.min if combine == "max" else limits.max, dtype)
    return literal({"sum": 0, "prod": 1, "any": False, "all": True}.get(combine, 0), dtype)


@record(frozen=True)
class V:
    """An expression with Python's operators."""

    expr: Expr

    @property
    def dtype(self) -> torch.dtype:
        """Returns the element type of the value."""
        return self.expr.dtype

    def to(self, dtype: torch.dtype) -> V:
        """Converts the value to `dtype`; returns the value itself if this is its dtype."""
        if dtype == self.dtype:
            return self
        if isinstance(self.expr, Const) and not (isinstance(self.expr.value, float) and not dtype.is_floating_point):
            return V(literal(self.expr.value, dtype))
        return V(Cast(self.expr, dtype))

    def __add__(self, other: V | Number) -> V:
        return apply("add", self, other)

    def __radd__(self, other: Number) -> V:
        return apply("add", other, self)

    def __sub__(self, other: V | Number) -> V:
        return apply("sub", self, other)

    def __rsub__(self, other: Number) -> V:
        return apply("sub", other, self)

    def __mul__(self, other: V | Number) -> V:
        return apply("mul", self, other)

    def __rmul__(self, other: Number) -> V:
        return apply("mul", other, self)

    def __truediv__(self, other: V | Number) -> V:
        return apply("div", self, other)

    def __rtruediv__(self, other: Number) -> V:
        return apply("div", other, self)

    def __neg__(self) -> V:
        return apply("neg", self)

    def __and__(self, other: V) -> V:
        always = Const(True, torch.bool)
        if self.expr == always:
            return other
        return self if other.expr == always else apply("and", self, other)

    def __or__(self, other: V) -> V:
        return apply("or", self, other)

    def __invert__(self) -> V:
        return apply("not", self)

    def __lt__(self, other: V | Number) -> V:
        return apply("lt", self, other)

    def __le__(self, other: V | Number) -> V:
        return apply("le", self, other)

    def __gt__(self, other: V | Number) -> V:
        return apply("gt", self, other)

    def __ge__(self, other: V | Number) -> V:
        return apply("ge", self, other)

    def eq(self, other: V | Number) -> V:
        """Compares elementwise (Python's `==` stays structural)."""
        return apply("eq", self, other)

    def ne(self, other: V | Number) -> V:
        """Compares elementwise for `!=`."""
        return apply("ne", self, other)


COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})


def apply(name: str, *operands: V | Number) -> V:
    """Applies the operation `name` of OPS to operands of one dtype; numbers take the dtype of the first V.

    Raises NotLowered for a dtype that the operation does not take.
    """
    dtype = next(o.dtype for o in operands if isinstance(o, V))
    args = tuple(operand(o, dtype) for o in operands)
    if name in ("lt", "ge"):
        decided = _decide(name, *args)
        if decided is not None:
            return const(decided, torch.bool)
    if dtype == torch.bool:
        name = ON_BOOL.get(name, name)
    if kind_of(dtype) not in OPS[name].kinds:
        raise NotLowered
    return V(Op(name, args, torch.bool if name in COMPARISONS else dtype))


def _decide(name: str, a: Expr, b: Expr) -> bool | None:
    """Returns the outcome of comparing an index with a number, if the range of the index decides it, else None."""
    if not isinstance(a, IndexValue) or a.dtype != torch.int64:
        return None
    limit: Extent
    match b:
        case Const(value=int(limit)) | IndexValue(index=Index(terms=(), const=limit)):
            bounds = a.index.bounds()
        case _:
            return None
    if bounds is not None and known_less(bounds[1], limit):
        return name == "lt"
    return name == "ge" if bounds is not None and known_at_least(bounds[0] - limit, 0) else None


def where(condition: V, a: V | Number, b: V | Number) -> V:
    """Returns `a` where the bool `condition` holds, else `b`; at least one side is a V."""
    dtype = next(o.dtype for o in (a, b) if isinstance(o, V))
    args = tuple(operand(o, dtype) for o in (a, b))
    return V(Op("where", (condition.expr, *args), dtype))


def const(value: Number | V, dtype: torch.dtype) -> V:
    """Returns a number converted to `dtype`."""
    return value.to(dtype) if isinstance(value, V) else V(operand(value, dtype))


def number(index: Index, dtype: torch.dtype = torch.int64) -> V:
    """Returns the value of an index expression."""
    return V(IndexValue(index, dtype)) if index.terms else const(index.const, dtype)


def maximum(a: V, b: V | Number) -> V:
    """Returns the larger operand, NaN if either is NaN."""
    return apply("max", a, b)


def minimum(a: V, b: V | Number) -> V:
    """Returns the smaller operand, NaN if either is NaN."""
    return apply("min", a, b)


def clamp(x: V, low: V | Number | None, high: V | Number | None) -> V:
    """Returns `min(max(x, low), high)`; either bound may be absent."""
    x = x if low is None else at_least(x, low)
    return x if high is None else at_most(x, high)


def at_least(x: V, low: V | Number) -> V:
    """Returns the larger operand. As in eager, a zero `x` keeps its sign if the bound is a number that is zero."""
    return maximum(x, low) if isinstance(low, V) else apply("max", low, x)


def at_most(x: V, high: V | Number) -> V:
    """Returns the smaller operand; a zero keeps its sign as in `at_least`."""
    return minimum(x, high) if isinstance(high, V) else apply("min", high, x)


def fma(a: V, b: V | Number, c: V | Number) -> V:
    """Returns `a * b + c`, rounded once for floats. Integers wrap, and need no rounding."""
    return apply("fma", a, b, c) if a.dtype.is_floating_point else a * b + c


def integer_power(x: V, exponent: int) -> V:
    """Returns `x ** exponent` for exponent >= 0 by repeated squaring; integers wrap as in torch."""
    result: V | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x if exponent else x
    return const(1, x.dtype) if result is None else result


def power(x: V, exponent: V | Number, squares: torch.dtype | None = None, roots: bool = True) -> V:
    """Returns `x ** exponent`, with eager's shortcuts for special exponents.

    `roots`: square roots are among the shortcuts. `squares`: the dtype to which a square is rounded before further use.
    """
    if isinstance(exponent, V):
        return apply("pow", x, exponent)
    if isinstance(exponent, Size):  # eager has other formulas for some exponents
        raise NotLowered
    if not x.dtype.is_floating_point:
        if exponent < 0:  # eager raises an error
            raise NotLowered
        return integer_power(x, int(exponent))
    square = (x * x).to(squares or x.dtype).to(x.dtype)
    shortcuts: dict[float, Callable[[], V]] = {
        0.0: lambda: const(1, x.dtype),
        1.0: lambda: x,
        2.0: lambda: x * x,
        3.0: lambda: square * x,
        -1.0: lambda: apply("reciprocal", x),
        -2.0: lambda: apply("reciprocal", square),
    }
    if roots:
        shortcuts |= {0.5: lambda: apply("sqrt", x), -0.5: lambda: apply("rsqrt", x)}
    shortcut = shortcuts.get(float(exponent))
    return shortcut() if shortcut is not None else apply("pow", x, exponent)


SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def gelu(x: V, approximate: str = "none") -> V:
    """Returns the Gaussian error linear unit, exact or by tanh."""
    if approximate == "none":
        return x * 0.5 * (1 + apply("erf", x * SQRT_HALF))
    inner = SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + apply("tanh", inner))


def gelu_backward(grad: V, x: V, approximate: str = "none") -> V:
    """Returns the gradient of `gelu`."""
    if approximate == "none":
        cdf = 0.5 * (1 + apply("erf", x * SQRT_HALF))
        pdf = apply("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (cdf + x * pdf)
    t = apply("tanh", SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x)))
    slope = SQRT_2_OVER_PI * (1 + 3 * 0.044715 * (x * x))
    return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)


def silu_backward(grad: V, x: V) -> V:
    """Returns the gradient of `x * sigmoid(x)`."""
    s = apply("sigmoid", x)
    return grad * s * (1 + x * (1 - s))


def lerp(a: V, b: V, weight: V | Number) -> V:
    """Interpolates linearly, from the nearer end as eager does."""
    if not isinstance(weight, V):
        weight = const(weight, a.dtype)
    near = apply("abs", weight) < 0.5
    return fma(where(near, weight, weight - 1), b - a, where(near, a, b))
