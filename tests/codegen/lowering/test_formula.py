"""Formulas: literals, casts, operators, shortcuts."""

import math

import pytest
import torch

from minidynamo.codegen.ir.expr import Const, Op, Ref
from minidynamo.codegen.ir.index import Var, as_index
from minidynamo.codegen.lowering.formula import (
    NotLowered,
    V,
    all_fit,
    apply,
    clamp,
    const,
    fits,
    fma,
    identity,
    integer_power,
    literal,
    number,
    opmath,
    power,
    where,
)

X = V(Ref("x", torch.float32))
N = V(Ref("n", torch.int32))
P = V(Ref("p", torch.bool))


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (0.1, torch.float32, 0.10000000149011612),
        (0.1, torch.float64, 0.1),
        (300, torch.uint8, 44),
        (-1, torch.uint8, 255),
        (200, torch.int8, -56),
        (2.9, torch.int64, 2),
        (2, torch.bool, True),
        (3, torch.float32, 3.0),
        (math.inf, torch.float32, math.inf),
    ],
)
def test_literals_are_rounded_or_wrapped(value, dtype, expected):
    made = literal(value, dtype).value
    assert made == expected and type(made) is type(expected)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (-7, torch.uint8, True), (-256, torch.uint8, False), (-0.5, torch.uint8, False), (255.5, torch.uint8, False),
        (math.nan, torch.int64, False), (math.nan, torch.float16, True), (70000, torch.float16, False),
        (-0.5, torch.bool, True), (-0.5, torch.int8, True),
    ],
)  # fmt: skip
def test_numbers_that_torch_converts(value, dtype, expected):
    assert fits(value, dtype) is expected


def test_dtypes_whose_numbers_torch_converts():
    dtypes = (torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.float32)
    into = {given: {dtype for dtype in dtypes if all_fit(given, dtype)} for given in dtypes}
    wide = {torch.bool, torch.float32}
    assert into == {
        torch.bool: {*dtypes},
        torch.uint8: {*dtypes} - {torch.int8},
        torch.int8: {*dtypes},
        torch.int64: {*wide, torch.int64},
        torch.float16: {*wide, torch.float16},
        torch.float32: wide,
    }


def test_identities():
    assert identity("max", torch.float32).value == -math.inf
    assert identity("min", torch.int8).value == 127
    assert identity("max", torch.bool).value is False
    assert (identity("sum", torch.int64).value, identity("all", torch.bool).value) == (0, True)


def test_numbers_take_the_dtype_of_the_operand():
    assert (2 * X).expr == Op("mul", (Const(2.0, torch.float32), X.expr), torch.float32)
    assert (N + 1).expr == Op("add", (N.expr, Const(1, torch.int32)), torch.int32)
    assert (X < 1).dtype == torch.bool


def test_arithmetic_on_bools_is_logic():
    assert apply("add", P, P).expr == Op("or", (P.expr, P.expr), torch.bool)
    assert apply("mul", P, P).expr == Op("and", (P.expr, P.expr), torch.bool)


def test_what_no_kernel_takes_is_not_lowered():
    with pytest.raises(NotLowered):
        apply("exp", N)
    with pytest.raises(NotLowered):
        apply("and", X, X)


def test_casts_fold_into_literals():
    assert const(1, torch.int64).to(torch.float32).expr == Const(1.0, torch.float32)
    assert X.to(torch.float32) is X
    assert const(1.5, torch.float32).to(torch.int64).dtype == torch.int64


def test_comparisons_that_a_range_decides():
    v = as_index(Var("i", 4))
    assert (number(v) < 4).expr == Const(True, torch.bool)
    assert (number(v + 4) < 4).expr == Const(False, torch.bool)
    assert (number(v) >= 0).expr == Const(True, torch.bool)
    assert isinstance((number(v) < 3).expr, Op)
    assert ((number(v) < 4) & P) == P == (P & (number(v) < 4))


def test_opmath():
    assert opmath(torch.bfloat16) == opmath(torch.float16) == torch.float32
    assert opmath(torch.float64) == torch.float64


@pytest.mark.parametrize("exponent", [0, 1, 2, 5, 13])
def test_integer_power_multiplies(exponent):
    def evaluate(expr, n):
        if isinstance(expr, Const):
            return expr.value
        return n if isinstance(expr, Ref) else evaluate(expr.args[0], n) * evaluate(expr.args[1], n)

    assert evaluate(integer_power(N, exponent).expr, 3) == 3**exponent


def test_shortcuts_of_power():
    assert power(X, 2) == X * X
    assert power(X, 0.5) == apply("sqrt", X)
    assert power(X, 1) is X
    assert power(X, 1.5).expr.name == "pow"


def test_clamp_where_and_fma():
    assert clamp(X, None, None) is X
    assert clamp(X, 0, None) == apply("max", 0, X)
    assert where(P, X, 0).dtype == torch.float32
    assert fma(X, 2, X).expr.name == "fma"
    assert fma(N, 2, N) == N * 2 + N
