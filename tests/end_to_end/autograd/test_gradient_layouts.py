"""Gradients with a different layout than the result: values and strides equal eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minidynamo

ACTIVATIONS = {
    "softplus": F.softplus,
    "elu": F.elu,
    "celu": F.celu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "hardshrink": F.hardshrink,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda h: F.threshold(h, 0.1, 0.0),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_before_a_transpose(name, backend):
    activation = ACTIVATIONS[name]

    def f(x, weight, bias):
        y = activation(F.linear(x, weight) + bias).transpose(1, 2)
        return y.contiguous().view(2, 8, 2, 3).cumsum(-1)

    compiled = minidynamo.compile(f, backend=backend)
    for seed in range(2):
        found = []
        for run in (f, compiled):
            torch.manual_seed(seed)
            args = [torch.randn(*sizes, requires_grad=True) for sizes in ((2, 6, 4), (8, 4), (8,))]
            result = run(*args)
            weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
            found.append([result.detach(), *torch.autograd.grad((result * weights).sum(), args)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


LOSSES = {"mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses_are_laid_out_by_rows(name):
    loss = LOSSES[name]

    def f(x, y):
        return loss(x.exp(), y.exp())

    compiled = minidynamo.compile(f, backend="aot_eager")
    found = []
    for run in (f, compiled):
        x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)).t().requires_grad_()
        (gradient,) = torch.autograd.grad(run(x, torch.ones(3, 5)), x)
        found.append((gradient, gradient.stride()))
    torch.testing.assert_close(found[1][0], found[0][0])
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16])
def test_powers_of_two_have_eagers_dtype(dtype, backend):
    def f(x, exponent):
        return torch.ldexp(x, exponent).sin()

    compiled = minidynamo.compile(f, backend=backend)
    for count in (3, 1000):
        x, exponent = torch.ones(count, dtype=dtype), torch.tensor(1.5, dtype=torch.bfloat16)
        torch.testing.assert_close(compiled(x, exponent), f(x, exponent))


def order_of(tensor):
    """Returns the dimensions with several elements, from the innermost on."""
    return [dim for _, dim in sorted((s, d) for d, s in enumerate(tensor.stride()) if tensor.shape[d] > 1)]


def columns(*sizes):
    return torch.rand(*reversed(sizes)).permute(*reversed(range(len(sizes))))


WAYS = {
    "rows": torch.rand,
    "columns": columns,
    "rows with gaps": lambda *sizes: torch.rand(*sizes, 2)[..., 0],
    "columns with gaps": lambda *sizes: columns(2, *sizes)[0],
    "repeated": lambda *sizes: torch.rand([]).expand(*sizes),
}
# Generated code computes this gradient by several operations, the last of which selects by its condition.
COMPOSED = ("softplus", "native")
VARYING = {
    "square": lambda x: x * x,
    "softplus": lambda x: F.softplus(x * x),
    "transposed": lambda x: (x * x).t() * 2,
    "two": lambda x: (x * x, x + 1),
    "neighbours": lambda x: x[1:] * x[:-1],
    "returned": lambda x: x.t(),
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, backend) for name in VARYING for backend in ("aot_eager", "native") if (name, backend) != COMPOSED],
)
def test_gradients_have_eagers_order_where_sizes_vary(name, backend):
    f = VARYING[name]
    for make in (torch.rand, columns):
        compiled = minidynamo.compile(f, backend=backend, dynamic=True)
        for way in WAYS.values():
            for size in (7, 3):
                x = make(size, 8).requires_grad_()
                found = []
                for run in (f, compiled):
                    results = run(x) if name == "two" else [run(x)]
                    torch.manual_seed(0)
                    gradients = [way(*result.shape) for result in results]
                    found.append(torch.autograd.grad(results, x, gradients)[0])
                torch.testing.assert_close(found[1], found[0])
                assert order_of(found[1]) == order_of(found[0])
