"""Reductions in C++: initial values, updates and types."""

import pytest
import torch

from minidynamo.codegen.ir.expr import Const
from minidynamo.codegen.ir.index import Var, as_index
from minidynamo.codegen.ir.loops import Accumulate
from minidynamo.codegen.printers.cpp_folds import Fold

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


def test_moments_of_the_same_elements_are_folded_once():
    value, other = Const(1.0, torch.float16), Const(2.0, torch.float16)
    made = [("m", "mean", value), ("s", "squares", value), ("n", "mean", other)]
    body = [Accumulate(name, combine, of, torch.float16) for name, combine, of in made]
    mean, squares, another = Fold.all_of(body, AXES[:1], 0)
    assert (mean.leads, squares.leads, another.leads) == (True, False, True)
    assert mean.moments("n") == "Moments<half> moments_m(n)"
    assert (mean.step("", "x", "i"), squares.step("", "x", "i")) == (["part_m[i] = to_float(x);"], [])
    assert (mean.value(""), squares.value("")) == ("moments_m.mean", "moments_m.squares")
