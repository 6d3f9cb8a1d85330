"""Tests of minidynamo/codegen/memory/workspace.py: what convolutions take while they run."""

import torch

from minidynamo.codegen.ir.loops import Buffer, Extern, Name
from minidynamo.codegen.memory.workspace import workspace

aten = torch.ops.aten
X, W, Y = (24, 256, 7, 7), (256, 256, 3, 3), (24, 256, 7, 7)


def buffer(name, shape, dtype=torch.float32, last=False):
    order = torch.channels_last if last and len(shape) == 4 else torch.contiguous_format
    strides = torch.empty(shape, device="meta", memory_format=order).stride()
    return Buffer(name, shape, strides, dtype, torch.device("cpu"))


def taken(op, shapes, made=None, dtype=torch.float32, last=False):
    buffers = {name: buffer(name, shape, dtype, last) for name, shape in shapes.items()}
    call = Extern("out", op, tuple(map(Name, shapes)), layout=None if made is None else buffer("out", made))
    return workspace(call, buffers)


def test_a_convolution_copies_its_operands():
    # Measured with torch's profiler: 4,767,744 bytes, the result's 1,204,224 among them.
    assert taken(aten.convolution.default, {"x": X, "w": W, "b": (256,)}, Y) == 4_767_744 - 1_204_224


def test_the_gradients_of_a_convolution_are_copied():
    # Measured with torch's profiler: 5,971,968 bytes, both gradients among them.
    assert taken(aten.convolution_backward.default, {"g": Y, "x": X, "w": W}) == 5_971_968


def test_with_channels_last_the_weights_are_copied():
    # Measured with torch's profiler: 303,128 bytes beside the result, and 720,896, both gradients among them.
    x, w = (8, 64, 8, 8), (64, 64, 3, 3)
    assert 0.97 * 303_128 <= taken(aten.convolution.default, {"x": x, "w": w, "b": (64,)}, x, last=True) <= 303_128
    assert taken(aten.convolution_backward.default, {"g": x, "x": x, "w": w}, last=True) == 720_896


def test_nothing_is_said_of_other_kernels():
    assert taken(aten.mm.default, {"x": (4, 4), "w": (4, 4)}, (4, 4)) == 0
    assert taken(aten.convolution.default, {"x": X, "w": W, "b": (256,)}, Y, torch.float64) == 0
