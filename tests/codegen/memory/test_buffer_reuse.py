"""Buffers that may be reused for a result computed from their contents. Needs no device."""

import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, Name
from minidynamo.codegen.memory.buffer_reuse import fillable_argument, in_place_operator, may_overwrite, same_layout
from tests.codegen.graphs import kernels

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
