"""Tests of minidynamo/codegen/memory/write_regions.py: buffers that may be reused for a result, and the elements that
change. No device."""

from __future__ import annotations

import pytest
import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, Name
from minidynamo.codegen.memory.write_regions import (
    Range,
    fillable_argument,
    in_place_operator,
    may_overwrite,
    same_layout,
)
from tests.codegen.graphs import kernels

X = torch.ones(8, 6)


def may(function, *args):
    """True if the only kernel of a function may write its first result over its first argument."""
    (kernel,) = kernels(function, *args)
    return may_overwrite(kernel, kernel.reads[0].name, kernel.writes[0].name)


def along(dim, part, other):
    """Computes `part` of `x` along a dimension from itself and a second part, and writes the result into `x`."""

    def program(x):
        chosen = (slice(None),) * dim
        made = x[(*chosen, part)] + x[(*chosen, other)]
        if isinstance(part, int):
            return torch.select_scatter(x, made, dim, part)
        return torch.slice_scatter(x, made, dim, part.start, part.stop, part.step or 1)

    return program


APART = {
    "rows": (0, slice(0, 4), slice(4, 8)),
    "columns": (1, slice(3, 6), slice(0, 3)),
    "every second row": (0, slice(0, 8, 2), slice(1, 8, 2)),
    "every third column": (1, slice(1, 6, 3), slice(0, 5, 3)),
    "one row": (0, 0, 5),
    "one column": (1, 5, 4),
    "the same rows": (0, slice(2, 5), slice(2, 5)),
}
TOGETHER = {
    "next rows": (0, slice(0, 4), slice(1, 5)),
    "rows before": (0, slice(1, 8), slice(0, 7)),
    "next columns": (1, slice(0, 3), slice(1, 4)),
    "rows in between": (0, slice(0, 8, 2), slice(3, 7)),
    "some of the same rows": (0, slice(0, 8, 4), slice(2, 5, 2)),
}


@pytest.mark.parametrize("name", APART)
def test_a_part_may_be_computed_of_what_stays(name):
    assert may(along(*APART[name]), X)


@pytest.mark.parametrize("name", TOGETHER)
def test_not_of_what_changes(name):
    assert not may(along(*TOGETHER[name]), X)


def test_what_changes_is_not_read_behind_the_write():
    def program(x, factor):
        made = torch.slice_scatter(x, x[:4] * factor, 0, 0, 4)
        return made, made / made.sum(1, keepdim=True)

    (kernel,) = kernels(lambda x: program(x, 2), X)
    stored = [[s.buffer for s in loop.body if hasattr(s, "buffer")] for loop in kernel.loops]
    assert stored[0] != [] and stored[-1] != []
    assert not may_overwrite(kernel, kernel.reads[0].name, stored[0][0])


def test_what_is_not_known_changes():
    assert not may(lambda x: torch.where(x > 0, x + x.t(), x), torch.ones(4, 4))
    assert not may(lambda x: x.flip(0), X)


def test_values_of_a_loop_variable():
    for start, step, low, high in [(0, 1, 3, 7), (0, 1, -5, 2), (5, 1, 0, 4), (1, 3, 2, 9), (2, 4, 50, 90)]:
        found = Range(start, step, 6).within(low, high)
        numbers = range(start, start + 6 * step, step)
        assert [*range(found.start, found.end, found.step)] == [n for n in numbers if low <= n < high]
    for start, remainder, modulus in [(0, 1, 3), (5, 0, 2), (4, -1, 4), (2, 3, 9)]:
        found = Range(start, 1, 6).congruent(remainder, modulus)
        numbers = range(start, start + 6)
        assert [*range(found.start, found.end, found.step)] == [n for n in numbers if (n - remainder) % modulus == 0]


aten = torch.ops.aten
LAYOUT = Buffer("out", (4, 4), (4, 1), torch.float32, torch.device("cpu"))


def alone(name):
    """Returns the owners of a name in a program without views."""
    return (name,)


def call(op, *args, **facts):
    return Extern("out", op, args, layout=LAYOUT, **facts)


def test_layouts_are_sizes_strides_and_dtypes():
    assert same_layout(LAYOUT, Buffer("x", (4, 4), (4, 1), torch.float32, torch.device("cpu")))
    assert not same_layout(LAYOUT, Buffer("x", (4, 4), (1, 4), torch.float32, torch.device("cpu")))


def test_elements_are_read_where_they_are_written_or_not_at_all():
    (kernel,) = kernels(lambda x: x.sin() + 1, torch.ones(4, 4))
    assert may_overwrite(kernel, kernel.reads[0].name, kernel.writes[0].name)
    (kernel,) = kernels(lambda x: x.t() + x, torch.ones(4, 4))
    assert not may_overwrite(kernel, kernel.reads[0].name, kernel.writes[0].name)


def test_a_copy_that_is_filled_may_be_the_argument_itself():
    assert fillable_argument(call(aten.index_fill.int_Scalar, Name("x"), 0, Name("i"), 1.0), alone) == "x"
    assert fillable_argument(call(aten.cumsum.default, Name("x"), 0), alone) is None
    assert fillable_argument(call(aten.cumsum.default, Name("x"), 0, in_place=aten.cumsum_.default), alone) == "x"
    assert in_place_operator(call(aten.mm.default, Name("x"), Name("y"))) is None


def test_not_where_another_argument_lies_in_the_same_memory():
    added = call(aten.index_add.default, Name("x"), 0, Name("i"), Name("v"))
    assert fillable_argument(added, lambda name: ("y",) if name == "v" else (name,)) == "x"
    assert fillable_argument(added, lambda name: ("x", "y") if name == "v" else (name,)) is None
    assert fillable_argument(call(aten.index_add.default, Name("x"), 0, Name("i"), Name("x")), alone) is None
