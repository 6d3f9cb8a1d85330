"""Tests of minidynamo/codegen/printers/cpp_expressions.py: literals, casts, operations that can fail, named
expressions, and reductions."""

from __future__ import annotations

import math

import pytest
import torch

from minidynamo.codegen.ir.expr import Cast, Const, IndexValue, Load, Op
from minidynamo.codegen.ir.index import Lookup, Var, as_index
from minidynamo.codegen.ir.loops import Accumulate, Let, Store
from minidynamo.codegen.printers.cpp_expressions import CppExpressions, Fold, invariants
from tests.codegen.printers import printer_cases as cases


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.5, torch.float32, "0.5f"),
        (300.0, torch.float32, "300.0f"),
        (0.1, torch.float64, "0.1"),
        (math.inf, torch.float32, "INF"),
        (-math.inf, torch.float64, "cast<double>(-INF)"),
        (math.nan, torch.float32, "NOT_A_NUMBER"),
        (0.5, torch.bfloat16, "cast<bfloat16>(0.5f)"),
        (7, torch.int64, "int64_t(7)"),
        (-(2**63), torch.int64, "int64_t(-9223372036854775807 - 1)"),
        (True, torch.bool, "true"),
    ],
)
def test_literals(value, dtype, text):
    assert CppExpressions().expr(Const(value, dtype)) == text


def test_narrow_integers_are_cut_back():
    a = Const(100, torch.int8)
    assert CppExpressions().expr(Op("add", (a, a), torch.int8)) == "(int8_t)(int8_t(100) + int8_t(100))"
    b = Const(100, torch.int32)
    assert CppExpressions().expr(Op("add", (b, b), torch.int32)) == "(int32_t(100) + int32_t(100))"


def test_a_guarded_load_does_not_touch_memory():
    guarded = Load("x", (as_index(Var("i", 4)),), torch.float32, Const(False, torch.bool))
    assert CppExpressions().expr(guarded) == "(false ? p_x[i] : float(0))"


def test_casts_and_indices_as_values():
    printer = CppExpressions()
    assert printer.expr(Cast(Load("x", (as_index(0),), torch.float32), torch.bool)) == "cast<bool>(p_x[0])"
    assert printer.expr(Cast(Const(1.0, torch.float32), torch.bool)) == "true"
    assert printer.expr(Cast(Const(float("nan"), torch.float32), torch.int8)) == "int8_t(0)"
    assert printer.expr(IndexValue(as_index(Var("i", 4)) * 2, torch.float32)) == "cast<float>((int64_t)(2 * i))"


def test_only_integer_division_and_checks_can_fail():
    printer = CppExpressions()
    number, real = Const(1, torch.int64), Const(1.0, torch.float32)
    assert printer.may_fail(Op("floordiv", (number, number), torch.int64))
    assert printer.may_fail(Cast(Op("check_index", (number, number), torch.int64), torch.float32))
    assert not printer.may_fail(Op("floordiv", (real, real), torch.float32))
    printer.hoisted[Op("check_index", (number, number), torch.int64)] = "h_0"
    assert not printer.may_fail(Cast(Op("check_index", (number, number), torch.int64), torch.float32))


def test_errors_are_found_in_operands_that_the_result_does_not_show():
    i = Var("i", 4)
    a, b = (cases.load(name, i, dtype=torch.int64) for name in "ab")
    rest, condition = Op("remainder", (a, b), torch.int64), Op("lt", (a, b), torch.bool)
    both = Op("and", (condition, Op("eq", (rest, a), torch.bool)), torch.bool)
    assert CppExpressions().expr(Op("where", (condition, rest, a), torch.int64)).startswith("choose(")
    assert "&&" not in CppExpressions().expr(both)
    assert "&&" in CppExpressions().expr(Op("and", (condition, condition), torch.bool))


def test_invariants_are_the_largest_expressions_without_the_inner_variable():
    i, j = Var("i", 4), Var("j", 8)
    scale = cases.op("exp", cases.load("scale", i))
    word = cases.op("check_index", cases.load("ids", i, dtype=torch.int64), Const(9, torch.int64))
    table = Load("table", (as_index(Lookup(word, 9)) * 8 + as_index(j),), torch.float32)
    body = (Let("a", cases.op("mul", table, scale)), Store("out", cases.at(i, j), cases.ref("a")))
    assert set(invariants(body, {j}, set())) == {scale, word}
    assert set(invariants(body, {i, j}, set())) == set()


def test_what_varies_by_name_is_no_invariant():
    root = cases.op("exp", cases.ref("mean"))
    body = (Let("a", root),)
    assert set(invariants(body, {Var("j", 8)}, set())) == {root}
    assert set(invariants(body, {Var("j", 8)}, {"mean"})) == set()


AXES = (Var("i", 3), Var("j", 4))


def fold(combine: str, dtype: torch.dtype, sum_block: int = 0, axes: tuple[Var, ...] = AXES) -> Fold:
    position = as_index(AXES[0]) * 4 + as_index(AXES[1]) if combine.startswith("arg") else None
    value = Const(False, dtype) if dtype is torch.bool else Const(0, dtype)
    return Fold.of(Accumulate("s", combine, value, dtype, position), axes, sum_block)


def test_a_short_float_sum_stays_a_float():
    short = fold("sum", torch.float32)
    assert (short.type, short.current) == ("float", "sum_s")
    assert short.step("", "x", "") == ["sum_s = sum_s + x;"]


def test_a_long_float_sum_goes_to_a_double_in_blocks():
    long = fold("sum", torch.float32, 128)
    assert (long.type, long.current) == ("double", "part_s")
    assert long.value("") == "cast<float>(sum_s)"


@pytest.mark.parametrize(("combine", "dtype"), [("max", torch.float32), ("sum", torch.int64), ("sum", torch.float64)])
def test_nothing_else_is_split(combine, dtype):
    assert not fold(combine, dtype, 128).is_blocked


@pytest.mark.parametrize(("combine", "clause"), [("max", "|"), ("min", "&"), ("any", "|"), ("all", "&")])
def test_extremes_of_bools_are_any_and_all(combine, clause):
    made = fold(combine, torch.bool)
    assert (made.clause, made.type) == (clause, "int32_t")


def test_half_types_are_compared_as_floats():
    made = fold("max", torch.bfloat16)
    assert made.type == "float"
    assert made.step("", "x", "") == ["max_s = maximum(max_s, to_float(x));"]
    assert made.value("") == "cast<bfloat16>(max_s)"


def test_a_position_is_kept_with_the_value_it_belongs_to():
    made = fold("argmin", torch.float32)
    assert made.declarations() == ["int64_t argmin_s", "float best_s"]
    assert made.start("[j]") == ["argmin_s[j] = -1", "best_s[j] = 0"]
    assert made.step("[j]", "x", "k")[-1] == "argmin_s[j] = take_s ? k : argmin_s[j];"
    assert made.clause == ""


def test_of_equal_values_the_first_one_is_kept_in_every_order_of_loops():
    in_order, turned = (fold("argmax", torch.float32, axes=axes).step("", "x", "k")[1] for axes in (AXES, AXES[::-1]))
    assert in_order == "const bool take_s = argmax_s < 0 || exceeds(new_s, best_s);"
    assert turned.endswith("exceeds(new_s, best_s) || (k < argmax_s && !exceeds(best_s, new_s));")
