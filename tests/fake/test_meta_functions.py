"""Tests of minidynamo/fake/meta_functions.py: results for symbolic sizes, and the argument dtypes of gradient
operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import minidynamo
from minidynamo.fake.meta_functions import has_dtypes_of_autograd
from tests.pairs import pairs

KINDS = {
    "linear": (1, {}),
    "bilinear": (2, {}),
    "bilinear aligned": (2, {"align_corners": True}),
    "bilinear antialiased": (2, {"antialias": True}),
    "bicubic": (2, {}),
    "bicubic antialiased": (2, {"antialias": True}),
    "trilinear": (3, {}),
    "nearest line": (1, {}),
    "nearest volume": (3, {}),
}
SIZES: dict[str, Callable[[Tensor, int], dict[str, Any]]] = {
    "size": lambda x, n: {"size": n},
    "sizes": lambda x, n: {"size": [n + k for k in range(x.dim() - 2)]},
    "factor": lambda x, n: {"scale_factor": 1.7},
    "factor once more": lambda x, n: {"scale_factor": 0.6, "recompute_scale_factor": True},
}


EVERY_SIZE = ["linear", "bilinear", "bicubic antialiased", "nearest volume"]


@pytest.mark.parametrize("kind, how", pairs(KINDS, SIZES, full=EVERY_SIZE, always=["sizes"]))
def test_any_size_gives_what_the_kernel_gives(kind: str, how: str) -> None:
    dims, options = KINDS[kind]

    def program(x: Tensor, n: int) -> Tensor:
        return F.interpolate(x * 2, mode=kind.split()[0], **SIZES[how](x, n), **options) * 3

    compiled = minidynamo.compile(program, backend="aot_eager")
    for n in range(5, 9):
        x = torch.randn(2, 3, *range(n, n + dims))
        if n % 2 and dims == 2:
            x = x.contiguous(memory_format=torch.channels_last)
        made, wanted = (_trained(call, x, n) for call in (compiled, program))
        assert [t.stride() for t in made] == [t.stride() for t in wanted]
        assert all(map(torch.equal, made, wanted))
    assert compiled.stats.graphs <= (3 if dims == 2 else 2)  # one more for the second layout


def _trained(call: Callable[[Tensor, int], Tensor], x: Tensor, n: int) -> list[Tensor]:
    x = x.detach().requires_grad_()
    result = call(x, n)
    (gradient,) = torch.autograd.grad(result, x, result.detach().cos())
    return [result, gradient]


def test_so_do_derivatives_of_gradients() -> None:
    def program(x: Tensor) -> Tensor:
        return F.interpolate(x.sin(), scale_factor=2, mode="bilinear")

    compiled = minidynamo.compile(program, backend="aot_eager")
    for n in range(4, 7):
        x = torch.randn(2, 3, n, n, requires_grad=True)
        found = []
        for call in (compiled, program):
            (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), x)[0])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", [{}, {"size": 4, "scale_factor": 2}, {"size": [4], "mode": "bicubic"}])
def test_what_torch_refuses_is_refused(options: dict[str, Any]) -> None:
    compiled = minidynamo.compile(
        lambda x: F.interpolate(x, **{"mode": "bilinear", **options}), backend="aot_eager", dynamic=True
    )
    with pytest.raises(ValueError):
        compiled(torch.randn(2, 3, 5, 6))


def _of_one_class(x: Tensor, classes: Tensor) -> Tensor:
    return F.multi_margin_loss(x.tanh(), classes[:, 0], p=2)


def _of_several(x: Tensor, classes: Tensor) -> Tensor:
    return F.multilabel_margin_loss(x.tanh(), classes, reduction="none").sum()


@pytest.mark.parametrize("program", [_of_one_class, _of_several])
def test_a_margin_loss_of_any_number_of_samples_is_the_kernels(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = minidynamo.compile(program, backend="aot_eager")
    for n in range(4, 9):
        x, classes = torch.randn(n, 5, requires_grad=True), torch.randint(0, 5, (n, 5))
        made, wanted = (call(x, classes) for call in (compiled, program))
        assert torch.equal(made, wanted)
        assert torch.equal(torch.autograd.grad(made, x)[0], torch.autograd.grad(wanted, x)[0])
    assert compiled.stats.graphs == 2


def tensors(*dtypes, device="meta"):
    return [torch.ones(2, dtype=dtype, device=device) for dtype in dtypes]


FLOAT, HALF, CLASSES, MASK = torch.float32, torch.float16, torch.int64, torch.bool


@pytest.mark.parametrize(
    ("name", "dtypes", "expected"),
    [
        ("tanh_backward", [FLOAT, FLOAT], True),
        ("tanh_backward", [FLOAT, HALF], False),
        ("tanh_backward", [CLASSES, CLASSES], False),
        ("native_dropout_backward", [HALF, MASK], True),
        ("native_dropout_backward", [HALF, HALF], False),
        ("nll_loss_backward", [FLOAT, FLOAT, CLASSES, FLOAT], True),
        ("nll_loss_backward", [FLOAT, FLOAT, CLASSES, HALF], False),
        ("nll_loss_backward", [FLOAT, FLOAT, FLOAT], False),
    ],
)
def test_which_dtypes_autograd_gives(name, dtypes, expected):
    assert has_dtypes_of_autograd(name, [*tensors(*dtypes), 1, None]) is expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("meta", True)])
def test_only_a_cpu_keeps_statistics_of_half_types_in_them(device, expected):
    grad, x, mean, rstd, weight = tensors(HALF, HALF, FLOAT, FLOAT, HALF, device=device)
    assert has_dtypes_of_autograd("native_layer_norm_backward", [grad, x, [2], mean, rstd, weight]) is expected
    assert not has_dtypes_of_autograd("native_layer_norm_backward", [grad, x, [2], mean, rstd, mean])
