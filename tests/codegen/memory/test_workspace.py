"""Tests of minidynamo/codegen/memory/workspace.py: what convolutions take while they run."""

import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, Name
from minidynamo.codegen.memory.workspace import workspace

aten = torch.ops.aten
X, W, Y = (24, 256, 7, 7), (256, 256, 3, 3), (24, 256, 7, 7)


def buffer(name, shape, dtype=torch.float32):
    strides = torch.empty(shape, device="meta").stride()
    return Buffer(name, shape, strides, dtype, torch.device("cpu"))


def taken(op, shapes, made=None, dtype=torch.float32):
    buffers = {name: buffer(name, shape, dtype) for name, shape in shapes.items()}
    call = Extern("out", op, tuple(map(Name, shapes)), layout=None if made is None else buffer("out", made))
    return workspace(call, buffers)


def test_a_convolution_copies_its_operands():
    # Measured with torch's profiler: 4,767,744 bytes, the result's 1,204,224 among them.
    assert taken(aten.convolution.default, {"x": X, "w": W, "b": (256,)}, Y) == 4_767_744 - 1_204_224


def test_the_gradients_of_a_convolution_are_copied():
    # Measured with torch's profiler: 5,971,968 bytes, both gradients among them.
    assert taken(aten.convolution_backward.default, {"g": Y, "x": X, "w": W}) == 5_971_968


def test_nothing_is_said_of_other_kernels():
    assert taken(aten.mm.default, {"x": (4, 4), "w": (4, 4)}, (4, 4)) == 0
    assert taken(aten.convolution.default, {"x": X, "w": W, "b": (256,)}, Y, torch.float64) == 0
