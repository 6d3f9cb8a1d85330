"""Tests of compiled kernels on values that tell formulas apart: infinities, the largest numbers, half types that are
rounded on the way. All are as eager's kernels make them."""

import math

import pytest
import torch
import torch.nn.functional as F

import minidynamo

INF, NAN = math.inf, math.nan


def same(made, expected):
    torch.testing.assert_close(made, expected, equal_nan=True)
    assert made.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_gelu_of_the_largest_numbers_hangs_on_the_layout(dtype):
    """Eager takes oneDNN's kernel for dense float tensors of two and more elements."""
    largest = torch.finfo(dtype).max
    values = torch.tensor([INF, -INF, NAN, largest, -largest, largest / 4, -0.0, 1.5], dtype=dtype)
    pairs = values.repeat(2, 1)
    layouts = [values, pairs, pairs.mT.contiguous().mT, pairs[:, ::2], pairs[:, 1:], values[:1], values[3:4], values[3]]

    def program(given):
        return [F.gelu(x, approximate=how) for x in given for how in ("none", "tanh")]

    for dynamic in (False, True):
        compiled = minidynamo.compile(program, dynamic=dynamic, fullgraph=True)
        for made, expected in zip(compiled(layouts), program(layouts), strict=True):
            same(made, expected)


LABELS = torch.tensor([0, 2, 1, 2] * 4)
ROUNDED = {
    "log_softmax of rows": lambda x: x.log_softmax(-1),
    "log_softmax of columns": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logsumexp of columns": lambda x: x.logsumexp(0, keepdim=True),
    "softmax of columns": lambda x: x.softmax(0),
    "softmax between": lambda x: x.view(4, 4, 9).softmax(1),
    "prod": lambda x: (x * 0.3 + 1).prod(1),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "sums with a factor": lambda x: torch.rsub(torch.add(x, x.mT.reshape(16, 9), alpha=0.3), 1.3, alpha=0.7),
    "sigmoid": lambda x: x.sigmoid(),
    "logit": lambda x: x.sigmoid().logit(eps=0.1),
    "glu": lambda x: F.glu(x[:, :8]),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), (x + 1).sigmoid().detach()),
    "huber_loss": lambda x: F.huber_loss(x, x.detach() * 0.9, delta=0.3),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x.detach() * 0.9, beta=0.3, reduction="none"),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x.detach().roll(1).sign()),
    "cross_entropy in sum": lambda x: F.cross_entropy(x.view(4, 3, 4, 3)[..., 0], LABELS.view(4, 4), reduction="sum"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_rounded_where_eager_rounds_them(dtype):
    """Bit for bit, but for elements that lie between two numbers within the error of `exp` and of sums."""
    torch.manual_seed(0)
    x = (torch.randn(16, 9) * 2).to(dtype)

    def program(x):
        return {name: function(x) for name, function in ROUNDED.items()}

    def with_gradients(function):
        given = x.clone().requires_grad_()
        results = function(given)
        for name, y in tuple(results.items()):
            grad = torch.linspace(0.3, 1.7, y.numel()).view(y.shape).to(dtype)
            results[f"gradient of {name}"] = torch.autograd.grad(y, given, grad, retain_graph=True)[0]
        return results

    made, expected = with_gradients(minidynamo.compile(program, fullgraph=True)), with_gradients(program)
    assert [name for name in expected if made[name].ne(expected[name]).float().mean() > 0.02] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_arithmetic_are_those_of_kernels_to_the_last_bit(dtype):
    """Of 64 elements none lies behind eager's last vector."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 64, dtype=dtype).unbind()

    def program(x, y):
        losses = [F.huber_loss(x, y, delta=0.7), F.smooth_l1_loss(x, y, beta=0.7)]
        backward = [torch.ops.aten.tanh_backward(x.detach(), y), torch.ops.aten.sigmoid_backward(x.detach(), y)]
        return [*losses, F.hardsigmoid(x * 3)], backward

    def gradients(function):
        given = x.clone().requires_grad_()
        results, backward = function(given, y)
        grads = [torch.linspace(0.3, 1.7, r.numel(), dtype=dtype).view(r.shape) for r in results]
        return [*(torch.autograd.grad(r, given, g, retain_graph=True)[0] for r, g in zip(results, grads)), *backward]

    for made, expected in zip(gradients(minidynamo.compile(program, fullgraph=True)), gradients(program), strict=True):
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
