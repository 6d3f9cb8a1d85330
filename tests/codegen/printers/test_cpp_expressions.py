"""Expressions in C++: literals, casts, operations that can fail, and expressions that get a name outside of a loop."""

import math

import pytest
import torch

from minidynamo.codegen.ir.expr import Cast, Const, IndexValue, Load, Op
from minidynamo.codegen.ir.index import Lookup, Var, as_index
from minidynamo.codegen.ir.loops import Let, Store
from minidynamo.codegen.printers.cpp_expressions import CppExpressions, invariants
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
