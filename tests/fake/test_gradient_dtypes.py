"""Tests of minidynamo/fake/gradient_dtypes.py."""

import pytest
import torch

from minidynamo.fake.gradient_dtypes import are_of_autograd


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
    assert are_of_autograd(name, [*tensors(*dtypes), 1, None]) is expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("meta", True)])
def test_only_a_cpu_keeps_statistics_of_half_types_in_them(device, expected):
    grad, x, mean, rstd, weight = tensors(HALF, HALF, FLOAT, FLOAT, HALF, device=device)
    assert are_of_autograd("native_layer_norm_backward", [grad, x, [2], mean, rstd, weight]) is expected
    assert not are_of_autograd("native_layer_norm_backward", [grad, x, [2], mean, rstd, mean])
