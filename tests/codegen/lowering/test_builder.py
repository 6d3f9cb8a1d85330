"""The builder: buffers, broadcasting, folds, adoption of eager's layout."""

import torch

from minidynamo.codegen.ir.expr import Cast, Const, Load
from minidynamo.codegen.ir.loops import Buffer, Loops
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.registry import Value

CPU = torch.device("cpu")


def start(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Builder, Value]:
    builder = Builder()
    builder.prefix = "op"
    buffer = Buffer("x", shape, (4, 1)[-len(shape) :], dtype, CPU)
    builder.buffers["x"] = buffer
    return builder, Value.whole(buffer)


def last(builder: Builder) -> Loops:
    node = builder.nodes[-1]
    assert isinstance(node, Loops)
    return node


def test_map_computes_half_in_float():
    builder, x = start(3, 4, dtype=torch.float16)
    builder.map(lambda v: v + 1, x, dtype=torch.float16)
    body = last(builder).body
    assert isinstance(body, Cast) and body.dtype == torch.float16
    assert body.value.dtype == torch.float32


def test_names_do_not_collide():
    builder, x = start(3, 4)
    first, second = builder.map(lambda v: v, x), builder.map(lambda v: v, x)
    assert (first.buffer.name, second.buffer.name) == ("op_map", "op_map_2")


def test_reduce_keeps_or_drops_dimensions():
    builder, x = start(3, 4)
    assert builder.reduce("sum", lambda v: v, x, dims=[1]).shape == (3,)
    assert builder.reduce("sum", lambda v: v, x, dims=[-1], keepdim=True).shape == (3, 1)
    assert builder.reduce("argmax", lambda v: v, x, dims=[0, 1]).dtype == torch.int64
    assert str(last(builder).position) == "4*i0 + i1"


def test_fold_of_one_element_is_pointwise():
    builder, x = start(1, 4)
    builder.reduce("sum", lambda v: v, x, dims=[0])
    assert last(builder).combine is None
    builder.reduce("argmax", lambda v: v, x, dims=[0], keepdim=True)
    assert last(builder).combine is None and last(builder).out.dtype == torch.int64


def test_fold_of_nothing_is_its_identity():
    builder, x = start(0, 4)
    assert builder.reduce("prod", lambda v: v, x, dims=[0]).shape == (4,)
    assert last(builder).combine is None and last(builder).body == Const(1.0, torch.float32)


def test_adopt_renames_everywhere():
    builder, x = start(3, 4)
    mean = builder.reduce("sum", lambda v: v, x, dims=[1], keepdim=True)
    builder.map(lambda v, m: v - m, x, mean)
    layout = Buffer("mean", (3, 1), (1, 3), torch.float32, CPU)
    assert builder.adopt(mean, layout, 0) == Value.whole(layout)
    first, second = builder.nodes
    assert isinstance(first, Loops) and first.out == layout
    assert isinstance(second, Loops) and Load("mean", second.body.args[1].index, torch.float32) == second.body.args[1]
    assert set(builder.buffers) == {"x", "mean", "op_map"}
