"""Reads and writes of tensor properties: facts, gradients, attributes, values known while tracing."""

from __future__ import annotations

import math

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, vector

programs = Programs()
test_same_as_eager = programs.test()


def matrix():
    return torch.randn(3, 4)


def leaf_with_gradient():
    x = leaf()
    x.grad = torch.ones(4)
    return x


def attributes_written(x):
    x.tag = "input"
    y = x * 2
    y.tag = {"of": "output"}
    return y, x.tag, y.tag["of"], hasattr(x, "other")


programs(vector)(attributes_written)


@programs(vector)
class Cases:
    same_requirement_again = lambda x: x.requires_grad_(False) + x.detach().requires_grad_(False)

    @programs(matrix)
    def facts(x):
        kind = x.dtype, x.device, x.layout, x.is_cuda, x.is_cpu, x.is_sparse, x.is_quantized, x.is_meta
        size = x.shape, x.ndim, x.itemsize, x.nbytes, x.dim(), x.numel(), x.nelement(), x.element_size(), x.stride()
        flags = x.requires_grad, x.is_leaf, x.is_contiguous(), x.is_floating_point(), x.is_complex(), x.is_signed()
        return kind, size, flags, x.is_conj(), x.is_neg(), x.is_inference(), x + 1

    @programs(matrix)
    def computed_facts(x):
        return x.T, x.mT, x.H, x.real, x.data * 2, x.detach() + 1

    @programs(lambda: torch.randn(4, dtype=torch.complex64))
    def parts_of_complex_numbers(x):
        return x.real + x.imag, x.conj() * 2, x.abs(), x.conj().is_conj(), x.imag.is_neg()

    @programs(matrix)
    def conversions(x):
        to = x.to(torch.float64), x.to("cpu"), x.to(torch.device("cpu"), torch.float16)
        to += x.to(x.double()), x.type_as(x.int())
        by_name = x.cpu(), x.float(), x.half(), x.double(), x.int(), x.long(), x.bool(), x.bfloat16()
        return to, by_name, x.type(torch.float64), x.type(), x.type("torch.DoubleTensor")

    @programs(matrix)
    def sizes(x):
        s = x.shape
        arithmetic = (*s, 3), (1, *s), s * 2, s[1:], s[::2], s[-1], s[0] * s[1], torch.Size([1, 2]) + s
        asked = s.numel(), len(s), s == (3, 4), s.count(3), s.index(4), 4 in s, max(s), math.prod(s), sorted(s), list(s)
        rows, *rest = s
        return arithmetic, asked, x.size(-1), x.size(dim=1), rows, rest, repr(s), x.view(*s), x.new_zeros(s[:1])

    def dtypes_and_devices(x):
        d, t = x.device, x.dtype
        device = (
            *(d.type, d.index, d == torch.device("cpu"), str(d), {d: 1}[torch.device("cpu")]),
            torch.device("cuda", 1).index,
        )
        dtype = t.is_floating_point, t.itemsize, t == torch.float32, str(t), t.to_complex(), {torch.float32: 1}[t]
        limits = torch.finfo(t).max, torch.finfo(torch.float16).eps, torch.iinfo(torch.int32).min, torch.finfo(t).bits
        return device, dtype, limits, torch.zeros(2, device=d, dtype=t), x.clamp(min=torch.finfo(t).min)

    def questions(x):
        promoted = (
            torch.result_type(x, 1),
            torch.promote_types(torch.int8, torch.float16),
            torch.can_cast(x.dtype, torch.int8),
        )
        kinds = torch.is_tensor(x), torch.is_tensor(3), torch.is_floating_point(x)
        kinds += torch.is_complex(x), torch.is_conj(x)
        made = promoted, kinds, torch.broadcast_shapes((3, 1), x.shape), torch.numel(x)
        return *made, torch.get_default_dtype(), x + 1

    @programs(leaf, leaf_with_gradient, graphs=2)
    def gradient_if_there_is_one(x):
        return x * 2 if x.grad is None else x.grad * 3

    @programs(leaf_with_gradient)
    def gradient_removed(x):
        x.grad = None
        return x.detach() * 2

    @programs(leaf_with_gradient)
    def gradient_replaced(x):
        x.grad = x.detach() * 3
        return x.grad + 1

    @programs(leaf_with_gradient)
    def gradient_zeroed(x):
        x.grad.zero_()
        return x.detach() * 2

    def no_history(x):
        y = x * 2
        return y if y.grad_fn is None and x.grad_fn is None and y.grad is None else x

    @programs(leaf)
    def written_through_data(x):
        x.data.mul_(2)
        return x * 1

    def requirement_changed(x):
        y = (x * 2).requires_grad_()
        return y * 3

    def value_of_a_constant(x):
        scale = torch.tensor(3)
        offset = torch.tensor([1.5])
        branch = 1 if torch.tensor(True) else 2
        return x * scale.item() + offset.tolist()[0] + float(offset[0]) + int(scale + 1) + branch

    @programs(lambda: torch.ones(4), graphs=2)
    def constant_that_is_written_to(x):
        scale = torch.tensor(3.0)
        scale.copy_(x[0] + 1)
        return x * scale.item()

    @programs(lambda: torch.topk(torch.randn(4), 2))
    def result_with_names(r):
        return r.values + 1, r[1], r, len(r)


def test_attributes_are_on_the_tensors_afterwards():
    x = vector()
    y, *_ = minidynamo.compile(attributes_written, backend="eager")(x)
    assert x.tag == "input" and y.tag == {"of": "output"}


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_end_the_graph():
    quantized = lambda x: torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8).dequantize() + 1
    assert_same_as_eager(quantized, vector, graphs=2)


@pytest.mark.parametrize("ask", ["item", "tolist", "__float__"])
def test_values_that_decide_nothing_stay_in_the_graph(ask):
    def program(x):
        y = x.sum() * 2
        value = getattr(y, ask)()
        return y + 1, float(value)

    assert_same_as_eager(program, vector, breaks=0, backward=False)
