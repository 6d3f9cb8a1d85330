"""Tests of minidynamo/memory/workspace.py: memory that CPU kernels allocate while they run."""

import pytest
import torch
from torch.nn import functional

from benchmarks.memory import peak_bytes
from minidynamo.compat import TorchDispatchMode
from minidynamo.memory.workspace import Operand, workspace, workspace_of

aten = torch.ops.aten
X, W, Y = (24, 256, 7, 7), (256, 256, 3, 3), (24, 256, 7, 7)


def operand(shape, dtype=torch.float32, last=False):
    order = torch.channels_last if last and len(shape) == 4 else torch.contiguous_format
    strides = torch.empty(shape, device="meta", memory_format=order).stride()
    return Operand(shape, strides, dtype, torch.device("cpu"))


def taken(op, shapes, made=None, dtype=torch.float32, last=False):
    args = [operand(shape, dtype, last) for shape in shapes]
    return workspace(op, args, [] if made is None else [operand(made)])


def test_a_convolution_copies_its_operands():
    # Measured with torch's profiler: 4,767,744 bytes, including the result's 1,204,224.
    assert taken(aten.convolution.default, [X, W, (256,)], Y) == 4_767_744 - 1_204_224


def test_the_gradients_of_a_convolution_are_copied():
    # Measured with torch's profiler: 5,971,968 bytes, including both gradients.
    assert taken(aten.convolution_backward.default, [Y, X, W]) == 5_971_968


def test_with_channels_last_the_weights_are_copied():
    # Measured with torch's profiler: 303,128 bytes in addition to the result, and 720,896, including both gradients.
    x, w = (8, 64, 8, 8), (64, 64, 3, 3)
    assert 0.97 * 303_128 <= taken(aten.convolution.default, [x, w, (64,)], x, last=True) <= 303_128
    assert taken(aten.convolution_backward.default, [x, x, w], last=True) == 720_896


def test_nothing_is_said_of_other_kernels():
    assert taken(aten.mm.default, [(4, 4), (4, 4)], (4, 4)) == 0
    assert taken(aten.convolution.default, [X, W, (256,)], Y, torch.float64) == 0


def on(device):
    return Operand((64, 64), (64, 1), torch.float32, torch.device(device))


def test_nothing_is_said_of_other_devices():
    assert workspace(aten.mse_loss.default, [on("cpu"), on("cpu")], []) == 2 * 64 * 64 * 4
    assert workspace(aten.mse_loss.default, [on("meta"), on("meta")], []) == 0


class Recorder(TorchDispatchMode):
    """Records the peak of calls: known workspaces, on top of results."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        new = [value for value in (made if isinstance(made, tuple) else (made,)) if all(value is not a for a in args)]
        self.most = max(self.most, workspace_of(func, args, made) + sum(value.nbytes for value in new))
        return made


x = torch.rand(64, 64)
bools, wholes, halves, doubles = x > 0.5, (x * 10).long(), x.bfloat16(), x.double()

queries = torch.rand(1, 64, 4, 16).transpose(1, 2)
attended, sums = aten._scaled_dot_product_flash_attention_for_cpu(queries, queries, queries)
CALLS = {
    "product of two types": lambda: x * bools,
    "product with a row of another type": lambda: doubles * wholes[0],
    "comparison of two types": lambda: x > doubles,
    "sine of whole numbers": lambda: wholes.sin(),
    "choice by a condition": lambda: torch.where(bools, x, doubles),
    "fill by a condition": lambda: x.masked_fill(bools, 0.0),
    "pointwise of one type": lambda: torch.addcmul(x, x, x),
    "count": lambda: bools.sum(),
    "sum in double precision": lambda: x.sum(0, dtype=torch.double),
    "products of conditions": lambda: bools.cumprod(0),
    "sum of one type": lambda: x.sum(0),
    "mean of halves": lambda: halves.mean(0),
    "mean of squares": lambda: functional.mse_loss(x, x),
    "Huber loss": lambda: functional.huber_loss(x, x),
    "smooth loss": lambda: functional.smooth_l1_loss(x, x),
    "squares": lambda: functional.mse_loss(x, x, reduction="none"),
    "logistic loss": lambda: functional.binary_cross_entropy_with_logits(x, x),
    "logistic losses": lambda: functional.binary_cross_entropy_with_logits(x, x, reduction="none"),
    "logarithm of sums": lambda: x.logsumexp(0),
    "product of matrices": lambda: x @ x.t(),
    "product with repeated numbers": lambda: x[0, 0].expand(64, 64) @ x,
    "attention": lambda: functional.scaled_dot_product_attention(*[x.view(1, 4, 64, 16)] * 3),
    "attention over long sequences": lambda: functional.scaled_dot_product_attention(*[x.view(1, 1, 1024, 4)] * 3),
    "gradients of attention": lambda: aten._scaled_dot_product_flash_attention_for_cpu_backward(
        attended, queries, queries, queries, attended, sums, 0.0, False
    ),
    "larger images": lambda: functional.interpolate(x.view(1, 4, 32, 32), scale_factor=2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_known_is_what_the_profiler_finds(name):
    with Recorder() as known:
        CALLS[name]()
    assert known.most <= peak_bytes(CALLS[name]) <= known.most + 600
