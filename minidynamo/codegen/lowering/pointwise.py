"""Owns the elementwise ATen operations, as a table of formulas.

An operation needs only a row. Broadcasting, half types and result dtypes are the same for all operations and are
handled below the table.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from minidynamo.codegen.ir.size import Size
from minidynamo.codegen.lowering import registry
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.dtypes import converted, may_not_fit
from minidynamo.codegen.lowering.formula import (
    Known,
    NotLowered,
    Number,
    V,
    apply,
    at_least,
    at_most,
    clamp,
    const,
    fma,
    gelu,
    gelu_backward,
    is_half,
    lerp,
    literal,
    maximum,
    minimum,
    opmath,
    power,
    silu_backward,
    where,
)
from minidynamo.codegen.lowering.registry import Coordinates, Value, broadcast_shape
from minidynamo.core.records import record


@record(frozen=True)
class Row:
    """An elementwise operation. Tensor arguments reach the formula in the dtype in which eager computes."""

    #: Takes the arguments of the ATen call: tensors as V, all others unchanged.
    formula: Callable[..., V]
    #: The dtype of the tensor arguments: of the "result", of the "promoted" arguments (comparisons), or "own" for the
    #: dtype of each argument.
    compute: str = "result"
    #: Whether eager rounds numbers to a half type before it computes, as it rounds 0-dim tensors of other dtypes.
    rounds: bool = False
    #: The position of the argument that `rounds`, and the rounding of 0-dim tensors, do not apply to.
    wide: int | None = None
    #: The device types on which half types are left to torch, because eager rounds to the half type in the middle of
    #: the operation: on a CPU perhaps only in the last elements, which fill no vector.
    half_by_torch: tuple[str, ...] = ()
    #: Whether arguments may be numbers that are known at run time only: a V in the dtype of the computation. False if
    #: the formula computes with numbers or reads them.
    numbers: bool = False
    #: False if eager raises an error for bools among the arguments; such calls are left to torch.
    bools: bool = True
    #: Whether eager raises an error for numbers that the dtype of the result does not hold. For named arguments
    #: (`alpha`) eager always raises it, by the dtype of the computation.
    strict: bool = False


def unary(name: str) -> Callable[[V], V]:
    """Returns the formula for a row of OPS with one operand."""
    return lambda x: apply(name, x)


def rounding(name: str) -> Callable[..., V]:
    """Returns the formula that is a row of OPS for floats, and the operand itself for integers."""

    def formula(x: V, *, decimals: int = 0) -> V:
        if decimals:
            raise NotLowered
        return apply(name, x) if x.dtype.is_floating_point else x

    return formula


def binary(name: str) -> Callable[[V | Number, V | Number], V]:
    """Returns the formula for a row of OPS with two operands."""
    return lambda a, b: apply(name, a, b)


def _add(a: V | Number, b: V | Number, alpha: V | Number = 1) -> V:
    if alpha == 1:
        return apply("add", a, b)
    tensor = a if isinstance(a, V) else b
    assert isinstance(tensor, V)
    a, b = (x if isinstance(x, V) else const(x, tensor.dtype) for x in (a, b))
    return fma(const(alpha, tensor.dtype), b, a)


def whole_division(operation: str) -> Callable[[V | Number, V | Number], V]:
    """Returns the formula for a row of OPS, for divisors that neither raise nor overflow."""

    def formula(a: V | Number, b: V | Number) -> V:
        tensor = a if isinstance(a, V) else b
        # For integers, eager raises an error for a zero, and the smallest integer divided by -1 overflows.
        if (
            isinstance(tensor, V)
            and not tensor.dtype.is_floating_point
            and (isinstance(b, (V, Size)) or int(b) in (0, -1))
        ):
            raise NotLowered
        return apply(operation, a, b)

    return formula


def _logical(name: str) -> Callable[..., V]:
    return lambda *operands: apply(name, *(x.to(torch.bool) for x in operands))


def _softplus(x: V, beta: Number = 1, threshold: Number = 20) -> V:
    return where(x * beta > threshold, x, apply("log1p", apply("exp", x * beta)) / beta)


def _elu(x: V, alpha: Known = 1, scale: Known = 1, input_scale: Known = 1) -> V:
    return where(x > 0, x * scale, apply("expm1", x * input_scale) * (alpha * scale))


def _dropout_backward(grad: V, mask: V, scale: Number) -> V:
    if not grad.dtype.is_floating_point:
        raise NotLowered  # for dropped elements, whole numbers have no negative zero
    wide = opmath(grad.dtype)
    return grad.to(wide) * mask.to(wide) * scale


ROWS: dict[str, Row] = {
    # arithmetic
    "add": Row(_add, rounds=True, numbers=True),
    "sub": Row(
        lambda a, b, alpha=1: apply("sub", a, b) if alpha == 1 else _add(a, b, alpha=-alpha),
        rounds=True,
        numbers=True,
        bools=False,
    ),
    "rsub": Row(
        lambda a, b, alpha=1: apply("sub", b, a) if alpha == 1 else fma(a, -alpha, b),
        rounds=True,
        numbers=True,
        bools=False,
    ),
    "mul": Row(binary("mul"), numbers=True, wide=1),
    "floor_divide": Row(whole_division("floordiv"), half_by_torch=("cpu", "cuda")),
    "square": Row(lambda x: x * x),
    "neg": Row(unary("neg")),
    "abs": Row(unary("abs")),
    "sign": Row(unary("sign")),
    "sgn": Row(unary("sign")),
    "reciprocal": Row(unary("reciprocal")),
    "addcmul": Row(lambda x, a, b, *, value=1: fma(a if value == 1 else value * a, b, x), numbers=True),
    "addcdiv": Row(lambda x, a, b, *, value=1: x + (a if value == 1 else value * a) / b, numbers=True),
    "lerp": Row(lerp, numbers=True),
    "maximum": Row(maximum),
    "minimum": Row(minimum),
    "clamp": Row(lambda x, min=None, max=None: clamp(x, min, max), numbers=True, strict=True),
    "clamp_min": Row(at_least, numbers=True, strict=True),
    "clamp_max": Row(at_most, numbers=True, strict=True),
    "copysign": Row(binary("copysign")),
    "atan2": Row(binary("atan2")),
    "hypot": Row(binary("hypot")),
    # rounding
    "floor": Row(rounding("floor"), bools=False),
    "ceil": Row(rounding("ceil"), bools=False),
    "trunc": Row(rounding("trunc"), bools=False),
    "round": Row(rounding("round"), bools=False),
    "frac": Row(lambda x: x - apply("trunc", x)),
    # functions of one variable
    "exp": Row(unary("exp")),
    "exp2": Row(unary("exp2")),
    "expm1": Row(unary("expm1")),
    "log": Row(unary("log")),
    "log2": Row(unary("log2")),
    "log10": Row(unary("log10")),
    "log1p": Row(unary("log1p")),
    "sqrt": Row(unary("sqrt")),
    "rsqrt": Row(unary("rsqrt"), half_by_torch=("cpu",)),
    "sin": Row(unary("sin")),
    "cos": Row(unary("cos")),
    "tan": Row(unary("tan")),
    "asin": Row(unary("asin")),
    "acos": Row(unary("acos")),
    "atan": Row(unary("atan")),
    "sinh": Row(unary("sinh")),
    "cosh": Row(unary("cosh")),
    "tanh": Row(unary("tanh")),
    "asinh": Row(unary("asinh")),
    "acosh": Row(unary("acosh")),
    "atanh": Row(unary("atanh")),
    "erf": Row(unary("erf")),
    "erfc": Row(unary("erfc")),
    "lgamma": Row(unary("lgamma"), half_by_torch=("cpu",)),
    "sigmoid": Row(unary("sigmoid")),
    # activations
    "relu": Row(lambda x: at_least(x, 0), bools=False),
    "gelu": Row(gelu),
    "silu": Row(lambda x: x / (1 + apply("exp", -x))),
    "mish": Row(lambda x: x * apply("tanh", apply("log1p", apply("exp", x)))),
    "softplus": Row(_softplus),
    "elu": Row(_elu),
    "leaky_relu": Row(lambda x, negative_slope=0.01: where(x > 0, x, x * negative_slope)),
    "hardtanh": Row(lambda x, min_val=-1, max_val=1: clamp(x, min_val, max_val)),
    "hardsigmoid": Row(lambda x: clamp(x + 3, 0, 6) / 6),
    "hardswish": Row(lambda x: x * clamp(x + 3, 0, 6) / 6),
    "threshold": Row(lambda x, threshold, value: where(x <= threshold, value, x), bools=False),
    # comparison and logic
    "eq": Row(binary("eq"), "promoted", rounds=True, numbers=True),
    "ne": Row(binary("ne"), "promoted", rounds=True, numbers=True),
    "lt": Row(binary("lt"), "promoted", rounds=True, numbers=True),
    "le": Row(binary("le"), "promoted", rounds=True, numbers=True),
    "gt": Row(binary("gt"), "promoted", rounds=True, numbers=True),
    "ge": Row(binary("ge"), "promoted", rounds=True, numbers=True),
    "isnan": Row(lambda x: x.ne(x), "promoted"),
    "isinf": Row(lambda x: apply("isinf", x) if x.dtype.is_floating_point else x.ne(x), "promoted"),
    "logical_and": Row(_logical("and"), "own"),
    "logical_or": Row(_logical("or"), "own"),
    "logical_xor": Row(_logical("xor"), "own"),
    "logical_not": Row(_logical("not"), "own"),
    "bitwise_and": Row(binary("and")),
    "bitwise_or": Row(binary("or")),
    "bitwise_xor": Row(binary("xor")),
    "bitwise_not": Row(unary("not")),
    "bitwise_left_shift": Row(binary("shl")),
    "bitwise_right_shift": Row(binary("shr")),
    # gradients that arrive as one operation
    "threshold_backward": Row(lambda grad, x, threshold: where(x <= threshold, 0, grad)),
    "gelu_backward": Row(gelu_backward),
    "silu_backward": Row(silu_backward),
    "tanh_backward": Row(lambda grad, y: grad * fma(-y, y, 1)),
    "leaky_relu_backward": Row(
        lambda grad, x, negative_slope, self_is_result: where(x > 0, grad, grad * negative_slope)
    ),
    "hardtanh_backward": Row(lambda grad, x, low, high: where((x <= low) | (x >= high), 0, grad)),
    "native_dropout_backward": Row(_dropout_backward, "own"),
}
"""ATen name -> formula. To add an operation, add a row."""


def lower_row(row: Row, builder: Builder, *args: Any, **kwargs: Any) -> Value:
    """Applies a row to the arguments of an ATen call."""
    all_arguments = (*args, *kwargs.values())
    tensors = [a for a in all_arguments if isinstance(a, Value)]
    if not tensors:  # only numbers, as in `torch.div(8, 2)`
        raise NotLowered
    if not row.bools and any(
        isinstance(a, bool) or (isinstance(a, Value) and a.dtype == torch.bool) for a in all_arguments
    ):
        raise NotLowered
    if builder.device.type in row.half_by_torch and is_half(builder.out.dtype):
        raise NotLowered
    if not row.numbers and any(isinstance(a, (Size, V)) for a in all_arguments):
        raise NotLowered
    shape = broadcast_shape(*(t.shape for t in tensors))
    common = builder.out.dtype
    if row.compute == "promoted":
        common = promoted([a for a in args if isinstance(a, (Value, V, bool, int, float, Size))])

    # A GPU does not round whole numbers, except in comparisons.
    numbers = (int, float) if builder.device.type == "cpu" or row.compute == "promoted" else float

    def operand(arg: Any, at: Coordinates, position: int | None = None) -> Any:
        if isinstance(arg, Value):
            value = V(arg.broadcast_load(at))
            if row.compute == "own":
                return value
            is_wide = position is not None and position == row.wide and arg.shape == ()
            return (value if is_wide else value.to(common)).to(opmath(common))
        if isinstance(arg, (Size, V)):
            if row.strict or position is None:
                return converted(builder, arg, common if row.strict else opmath(common)).to(opmath(common))
            if not common.is_floating_point and may_not_fit(arg, common):
                raise NotLowered
            return const(arg, common if row.rounds else opmath(common)).to(opmath(common))
        if row.rounds and isinstance(arg, numbers) and common.is_floating_point:
            return literal(arg, common).value
        return arg

    def body(at: Coordinates) -> V:
        named = {key: operand(arg, at) for key, arg in kwargs.items()}
        return row.formula(*(operand(arg, at, position) for position, arg in enumerate(args)), **named)

    return builder.compute(shape, body, builder.out.dtype)


def promoted(arguments: list[Any]) -> torch.dtype:
    """Returns the dtype in which torch computes for these tensors and numbers."""

    def sample(argument: Any) -> Any:
        if isinstance(argument, Value):
            return torch.empty((1,) * len(argument.shape), dtype=argument.dtype)
        return 1.0 if isinstance(argument, V) else 1 if isinstance(argument, Size) else argument

    samples = [sample(a) for a in arguments]
    if len(samples) == 1:
        dtype: torch.dtype = samples[0].dtype
        return dtype
    return torch.result_type(samples[0], samples[1])


def lower_scaled(row: Row, builder: Builder, a: Any, b: Any, alpha: Any = 1) -> Value:
    """Lowers sums and differences with a factor. With a factor, eager rounds half types on a CPU in some of the
    elements."""
    if alpha == 1:
        return lower_row(row, builder, a, b)
    return lower_row(dataclasses.replace(row, half_by_torch=("cpu",)), builder, a, b, alpha=alpha)


for _name, _row in ROWS.items():
    registry.add(_name, functools.partial(lower_scaled if _name in ("add", "sub", "rsub") else lower_row, _row))


DIVISIONS = {
    None: Row(binary("div"), numbers=True, wide=1),
    "floor": ROWS["floor_divide"],
    "trunc": Row(whole_division("truncdiv"), half_by_torch=("cpu", "cuda")),
}


@registry.lowering("div")
def lower_div(builder: Builder, a: Value, b: Value | V | Number, *, rounding_mode: str | None = None) -> Value:
    """Divides, without rounding, or rounded down or to zero."""
    return lower_row(DIVISIONS[rounding_mode], builder, a, b)


REMAINDERS = {name: Row(whole_division(name), rounds=True) for name in ("fmod", "remainder")}


def _remainder(name: str, builder: Builder, a: Value | V | Number, b: Value | V | Number) -> Value:
    """Lowers a remainder.

    If the quotient overflows, torch's vector kernels return NaN and its other kernels the remainder. The quotient
    cannot overflow for float16, and for known divisors of absolute value 1 or more; other cases stay torch's own.
    """
    dtype, is_large = builder.out.dtype, isinstance(b, (int, float)) and abs(b) >= 1
    if builder.device.type == "cpu" and dtype.is_floating_point and dtype != torch.float16 and not is_large:
        raise NotLowered
    return lower_row(REMAINDERS[name], builder, a, b)


for _name in REMAINDERS:
    registry.add(_name, functools.partial(_remainder, _name))


@registry.lowering("pow")
def lower_pow(builder: Builder, a: Value | V | Number, b: Value | V | Number) -> Value:
    """Computes powers.

    On a CPU, eager computes roots of float16 as powers. For bfloat16 eager rounds intermediate results: of squares, and
    of roots of the elements that fill no vector.
    """
    dtype, on_cpu = builder.out.dtype, builder.out.device.type == "cpu"
    if on_cpu and dtype == torch.bfloat16 and b == -0.5:
        raise NotLowered
    roots = not (on_cpu and dtype == torch.float16)
    squares = dtype if on_cpu and dtype == torch.bfloat16 else opmath(dtype)

    def formula(x: V | Number, exponent: V | Number) -> V:
        if not isinstance(x, V):
            return apply("pow", x, exponent)
        if isinstance(exponent, V) and not x.dtype.is_floating_point:
            raise NotLowered
        return power(x, exponent, squares, roots)

    return lower_row(Row(formula, rounds=True), builder, a, b)


@registry.lowering("sigmoid_backward")
def lower_sigmoid_backward(builder: Builder, grad: Value, y: Value) -> Value:
    """Computes the gradient of a sigmoid, on a CPU rounded to float16 after each step."""
    dtype = torch.float16 if builder.device.type == "cpu" and builder.out.dtype == torch.float16 else None

    def rounded(v: V) -> V:
        return v if dtype is None else v.to(dtype).to(v.dtype)

    return lower_row(Row(lambda g, v: rounded(g * rounded(1 - v)) * v), builder, grad, y)


@registry.lowering("nan_to_num")
def lower_nan_to_num(
    builder: Builder, x: Value, nan: Known | None = None, posinf: Known | None = None, neginf: Known | None = None
) -> Value:
    """Replaces NaN and the infinities by numbers, by default the largest of the dtype of `x`."""
    if not x.dtype.is_floating_point:
        return lower_clone(builder, x)
    limits = torch.finfo(x.dtype)

    def formula(v: V) -> V:
        finite = where(apply("isnan", v), 0.0 if nan is None else nan, v)
        finite = where(v.eq(math.inf), limits.max if posinf is None else posinf, finite)
        return where(v.eq(-math.inf), limits.min if neginf is None else neginf, finite)

    return lower_row(Row(formula), builder, x)


@registry.lowering("where")
def lower_where(builder: Builder, condition: Value, a: Value | V | Number, b: Value | V | Number) -> Value:
    """Lowers aten.where with three arguments."""
    sides = [x if isinstance(x, Value) else constant(builder, x) for x in (a, b)]
    dtype = builder.out.dtype
    return builder.map(
        lambda c, x, y: where(c.to(torch.bool), x.to(dtype), y.to(dtype)), condition, *sides, dtype=dtype
    )


def constant(builder: Builder, value: V | Number) -> Value:
    """Creates a 0-dim tensor in the dtype of the result."""
    element = converted(builder, value, builder.out.dtype)
    return builder.compute((), lambda _: element)


@registry.lowering("masked_fill")
def lower_masked_fill(builder: Builder, x: Value, mask: Value, value: Value | V | Number) -> Value:
    """Lowers aten.masked_fill with a number or a 0-dim tensor; eager reads the number from the 0-dim tensor."""
    if isinstance(value, Value) and may_not_fit(value, builder.out.dtype):
        raise NotLowered
    return lower_where(builder, mask, value, x)


@registry.lowering("_to_copy", "prims.convert_element_type")
def lower_cast(builder: Builder, x: Value | V | Number, *args: Any, **kwargs: Any) -> Value:
    """Converts a tensor, or a number as vmap does. Conversions of device or layout are never passed to it."""
    if not isinstance(x, Value):
        return constant(builder, x)
    return builder.compute(x.shape, lambda at: V(x.load(at)), builder.out.dtype)


@registry.lowering("clone", "lift_fresh_copy", "copy")
def lower_clone(builder: Builder, *args: Any, **kwargs: Any) -> Value:
    """Copies a tensor into the layout of the result; `aten.copy(x, y)` is y with the dtype and sizes of x."""
    source = next(a for a in reversed(args) if isinstance(a, Value))
    return builder.compute(builder.out.shape, lambda at: V(source.broadcast_load(at)), builder.out.dtype)
