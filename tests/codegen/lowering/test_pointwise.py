"""Elementwise operations: each row of the table against eager, in all supported dtypes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import fx

from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.loops import Extern
from minidynamo.codegen.lowering.pointwise import ROWS, promoted
from minidynamo.codegen.lowering.registry import Value
from tests.codegen.graphs import check, compare, lower, trace
from tests.pairs import pairs

F = torch.nn.functional
aten = torch.ops.aten

EXACT = {
    "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "square", "neg", "abs", "sign", "sgn",
    "reciprocal", "addcmul", "addcdiv", "lerp", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "copysign",
    "floor", "ceil", "trunc", "round", "frac", "relu", "leaky_relu", "hardtanh", "hardsigmoid", "hardswish",
    "threshold", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_and", "logical_or", "logical_xor",
    "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift",
    "bitwise_right_shift", "nan_to_num", "threshold_backward", "leaky_relu_backward", "hardtanh_backward",
    "native_dropout_backward",
}  # fmt: skip
"""Arithmetic, which is bitwise equal to eager; functions may differ in the last places."""

POSITIVE = {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "acosh", "pow"}
NOT_ZERO = {"bitwise_left_shift", "bitwise_right_shift", "floor_divide", "remainder", "fmod", "div"}

SIZE = 1024
"""A whole number of eager's vectors: behind the last whole one eager rounds half types in other places."""


def sample(dtype: torch.dtype, positive: bool, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        x = torch.randn(SIZE, generator=generator) * 2
        return (x.abs() + 0.01 if positive else x).to(dtype)
    return torch.randint(
        1 if positive else 0 if dtype in (torch.uint8, torch.bool) else -9, 10, (SIZE,), generator=generator
    ).to(dtype)


SCALARS = {
    "number": (3, 1.7),
    "float": (1, 0.37),
    "bool": (False, False),
    "int": (2, 2),
    "Optional[number]": (-1, -0.5),
}


def arguments(op: Any, name: str, dtype: torch.dtype) -> list[Any]:
    """Returns tensors for the tensor arguments of an overload, and numbers for the required rest."""
    made: list[Any] = []
    for k, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if name == "native_dropout_backward" and argument.name == "mask":
            made.append(sample(torch.bool, False, k))
        elif kind in ("Tensor", "Optional[Tensor]") and not argument.has_default_value():
            whole = not dtype.is_floating_point
            made.append(sample(dtype, name in POSITIVE or (whole and name in NOT_ZERO), k))
        elif argument.has_default_value() or argument.kwarg_only:
            break
        elif kind in SCALARS:
            made.append(SCALARS[kind][dtype.is_floating_point])
        else:
            made.append(None)
    return made


def overloads(name: str) -> list[Any]:
    """Returns the functional overloads that take a tensor first or second."""
    packet = getattr(aten, name)
    found = [getattr(packet, overload) for overload in packet.overloads()]
    return [
        op
        for op in found
        if not op._schema.is_mutable and any(str(a.type) == "Tensor" for a in op._schema.arguments[:2])
    ]


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "div": [{"rounding_mode": "floor"}, {"rounding_mode": "trunc"}],
    "gelu": [{"approximate": "tanh"}],
    "gelu_backward": [{"approximate": "tanh"}],
    "add": [{"alpha": 3}],
    "sub": [{"alpha": 3}],
    "addcmul": [{"value": 2}],
    "addcdiv": [{"value": 2}],
}


def cases(dtype: torch.dtype) -> list[tuple[str, Any, list[Any], torch.Tensor]]:
    """Yields each call that eager accepts: label, function of tensors only, tensors, result."""
    found = []
    for name in (*ROWS, "div", "pow", "fmod", "remainder", "erf", "gelu", "gelu_backward"):
        for op in overloads(name):
            args = arguments(op, name, dtype)
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            for extra in ({}, *VARIANTS.get(name, ())):
                call = functools.partial(call_with, op, args, extra)
                try:
                    expected = call(*tensors)
                except (RuntimeError, TypeError):
                    continue  # eager rejects the dtype or keyword
                found.append((f"{op} {extra or ''}", call, tensors, expected))
    return found


def call_with(op: Any, args: list[Any], extra: dict[str, Any], *tensors: torch.Tensor) -> torch.Tensor:
    given = iter(tensors)
    return op(*(next(given) if isinstance(a, torch.Tensor) else a for a in args), **extra)


def one_graph(calls: list[tuple[str, Any, list[Any], torch.Tensor]]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Runs all calls in one graph, so that one library holds all kernels."""

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        return [call(*(next(given) for _ in own)) for _, call, own, _ in calls]

    tensors = [t for _, _, own, _ in calls for t in own]
    return trace(function, *tensors), tensors


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize(
    ("dtype", "target"),
    pairs(
        DTYPES,
        [pytest.param("cpp", marks=pytest.mark.cpp), "triton"],
        full=[torch.float32, torch.bfloat16, torch.int64, torch.bool],
        always=["cpp"],
    ),
    ids=str,
)
def test_every_row(dtype, target):
    calls = cases(dtype)
    assert len({label.split(".")[1] for label, *_ in calls}) > (20 if dtype == torch.bool else 35)
    gm, tensors = one_graph(calls)
    results = compile_graph(gm, target=target).call(list(tensors))
    wrong = []
    for (label, _, _, expected), result in zip(calls, results, strict=True):
        exact = label.split(".")[1] in EXACT or not expected.dtype.is_floating_point
        tolerance = 0 if exact else TOLERANCE[expected.dtype]
        if result.dtype != expected.dtype or not torch.allclose(result, expected, tolerance, tolerance, True):
            wrong.append(label)
    assert wrong == []


@pytest.mark.cpp
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2])
def test_powers_with_a_shortcut(exponent):
    check(lambda x: x**exponent, torch.rand(SIZE) + 0.1)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_powers_of_every_half_number(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)

    def powers(x):
        return [x**exponent for exponent in (2, 3, 0.5, -0.5, -1, -2)]

    compiled = compile_graph(trace(powers, x), target="cpp")
    for made, power in zip(compiled.call([x]), powers(x)):
        compare([made, made.signbit() | made.isnan()], [power, power.signbit() | power.isnan()], exact=True)


@pytest.mark.cpp
def test_special_values():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.5])
    check(
        lambda x: (x.relu(), x.sign(), x.clamp(-1, 1), torch.maximum(x, x.flip(0)), x.round(), x.isnan(), x.isinf(),
                   x.nan_to_num(), torch.where(x > 0, x, 1.0), x.bool(), x.fmod(2), x.remainder(2)),
        x, exact=True,
    )  # fmt: skip


@pytest.mark.cpp
def test_casts():
    x = torch.tensor([300.7, -1.5, 0.0, 2.5])
    dtypes = (torch.int64, torch.int32, torch.int8, torch.bool, torch.float64, torch.float16, torch.bfloat16)
    check(lambda x: [x.to(d) for d in dtypes], x, exact=True)


@pytest.mark.cpp
def test_zero_dim_tensors_act_like_numbers():
    half = torch.randn(SIZE).bfloat16()
    number = torch.tensor(0.123456789)
    check(lambda x, s: (x * s, x / s, x + s, x < s), half, number, exact=True)
    check(lambda x, s: (s * x, s / x, s - x, x - s), half, number, exact=True)
    check(lambda x, s: (torch.addcmul(s, x, x), torch.addcmul(x, s, x), torch.addcdiv(s, x, x + 9)), half, number)


def test_integer_division_by_a_tensor_is_left_to_torch():
    program = lower(lambda x, y: x // y, torch.arange(4), torch.ones(4, dtype=torch.int64))
    assert isinstance(program.nodes[0], Extern)


def test_promoted():
    ints = Value.whole(lower(lambda x: x + 1, torch.arange(3)).buffers["x_1"])
    assert promoted([ints, 0.5]) == torch.float32
    assert promoted([ints, 2]) == torch.int64
    assert promoted([ints]) == torch.int64


@pytest.mark.cpp
def test_masked_fill_and_copies():
    x = torch.randn(3, 4)
    check(lambda x: (x.masked_fill(x > 0, -1.0), x.t().clone(memory_format=torch.contiguous_format)), x, exact=True)
    compare([x], [x], exact=True)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_infinities_become_the_largest_numbers_of_the_dtype(dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.5]).to(dtype)
    check(lambda x: (x.nan_to_num(), x.nan_to_num(2, 3, -4)), x, exact=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.masked_fill(x > 1, 300),
        lambda x: torch.where(x > 1, x, 300),
        lambda x: torch.full_like(x, float("nan"), dtype=torch.int64),
        lambda x: x.half().masked_fill(x > 1, 1e6),
        lambda x: x.float().masked_fill(x > 1, 1e39),
        lambda x: x.clamp(-5, 300),
        lambda x: aten.native_dropout_backward(x, x > 1, 2.0),
        lambda x: torch.nn.functional.pad(x, (1, 1), value=float("inf")),
        lambda x: (x > 1) - True,
        lambda x: 1 - (x > 1),
        lambda x: (x > 1).relu(),
        lambda x: (x > 1).floor(),
        lambda x: x**-1,
        lambda x: torch.round(x.double(), decimals=2),
    ],
)
def test_what_eager_may_refuse_is_left_to_torch(function):
    program = lower(function, torch.tensor([0, 2], dtype=torch.uint8))
    assert any(isinstance(node, Extern) for node in program.nodes)


def test_a_negative_number_may_wrap_in_an_unsigned_dtype():
    program = lower(lambda x: x.masked_fill(x > 1, -1), torch.tensor([0, 2], dtype=torch.uint8))
    assert not any(isinstance(node, Extern) for node in program.nodes)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_zeros_keep_their_sign_beside_a_bound(dtype):
    x = torch.tensor([0.0, -0.0] * 35).to(dtype)
    check(lambda x: [1 / y for y in (x.relu(), x.clamp(0, 1), x.clamp(-1, 0), F.hardtanh(x, 0, 1))], x, exact=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_no_number_is_the_same_integer_as_in_eager(dtype):
    def function(x):
        return (
            x.frac().to(torch.int32),
            x.log().to(torch.int32),
            x.log().to(torch.int64),
            x.frac().to(torch.int32) - 0.5,
        )

    x = torch.randn(32)
    x[::3], x[1], x[2] = float("nan"), float("inf"), float("-inf")
    check(function, x.to(dtype), exact=True)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("number", [257, -2049, 70_000, 2**60 + 2**36 + 1])
def test_whole_numbers_that_a_dtype_does_not_hold(dtype, number):
    """Eager rounds the numbers first, once, maybe to infinity."""

    def function(x):
        return x > number, x != number, x == number, x <= number, x + number, number - x, x.remainder(number)

    x = torch.tensor(
        [float("inf"), -float("inf"), float("nan"), 1, 256, 258, -2048, -2050, 6e4, 2**60, 2**60 + 2**37] * 4
    )
    check(function, x.to(dtype), exact=True)


@pytest.mark.parametrize(
    ("dtype", "divisor", "by_torch"),
    [
        (torch.float32, 1, False),
        (torch.float32, -2.5, False),
        (torch.float32, 0.999, True),
        (torch.float64, 0.0, True),
        (torch.bfloat16, 0.5, True),
        (torch.bfloat16, 3, False),
        (torch.float16, 1e-3, False),
        (torch.int64, 3, False),
    ],
)
@pytest.mark.parametrize("operation", [torch.fmod, torch.remainder])
def test_quotients_that_may_overflow_are_left_to_torch(operation, dtype, divisor, by_torch):
    x = torch.ones(4, dtype=dtype)
    assert isinstance(lower(lambda x: operation(x, divisor), x).nodes[0], Extern) == by_torch


def test_divisors_that_are_tensors_are_not_known():
    x = torch.ones(4)
    assert isinstance(lower(lambda x: torch.fmod(x, x), x).nodes[0], Extern)
    assert not isinstance(lower(lambda x: torch.fmod(x, x), x.half()).nodes[0], Extern)
