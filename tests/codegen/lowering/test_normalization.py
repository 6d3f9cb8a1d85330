"""Rows: softmax, layer norm and their gradients against eager, each one kernel."""

import pytest
import torch

from tests.codegen.graphs import check, kernels, scheduled

pytestmark = pytest.mark.cpp

F = torch.nn.functional
aten = torch.ops.aten
X = torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(1))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)


@DTYPES
@pytest.mark.parametrize("dim", [-1, 0])
def test_softmax(dtype, dim):
    check(lambda x: (x.softmax(dim), x.log_softmax(dim)), X.to(dtype))


def test_softmax_over_rows_that_neighbours_lie_between():
    apart = torch.randn(100, generator=torch.Generator().manual_seed(0)).as_strided((2, 3, 4), (27, 9, 2))
    check(lambda x: (x.softmax(1), x.log_softmax(1)), apart)
    check(lambda x: x.softmax(1), apart)
    check(lambda x: x.softmax(1).exp().sum(1), apart)


def test_softmax_to_float():
    check(lambda x: aten._softmax.default(x, -1, False).float(), X.bfloat16())


def test_softmax_of_masked_rows():
    x = X.clone()
    x[0, 0] = -torch.inf
    x[1, 1, 3:] = -torch.inf
    check(lambda x: (x.softmax(-1), x.log_softmax(-1)), x)


@DTYPES
def test_safe_softmax_is_zero_where_a_row_is_masked(dtype):
    x = X.clone()
    x[0, 0] = -torch.inf
    x[1, 1, 3:] = -torch.inf
    x[2, 0, 1] = torch.nan
    check(lambda x: (aten._safe_softmax(x, -1), aten._safe_softmax(x, 0)), x.to(dtype))


@DTYPES
def test_gradients(dtype):
    y = X.softmax(-1).to(dtype)
    check(lambda g, y: aten._softmax_backward_data(g, y, -1, dtype), X.to(dtype), y)
    check(lambda g, y: aten._log_softmax_backward_data(g, y, -1, dtype), X.to(dtype), y.log())


@DTYPES
@pytest.mark.parametrize("affine", ["both", "weight", "none"])
def test_layer_norm(dtype, affine):
    w = torch.linspace(-1, 1, 16).to(dtype) if affine != "none" else None
    b = torch.linspace(2, 1, 16).to(dtype) if affine == "both" else None
    given = [t for t in (w, b) if t is not None]
    check(lambda x, *p: aten.native_layer_norm(x, [16], *p, *[None] * (2 - len(p)), 1e-5), X.to(dtype), *given)


def test_layer_norm_over_several_dimensions():
    check(lambda x: F.layer_norm(x, (5, 16)), X)


@pytest.mark.parametrize("wanted", [[True, True, True], [True, False, False], [False, True, True]])
def test_layer_norm_backward(wanted):
    w, b = torch.linspace(-1, 1, 16), torch.linspace(2, 1, 16)
    _, mean, rstd = aten.native_layer_norm(X, [16], w, b, 1e-5)

    def backward(g, x, mean, rstd, w, b):
        results = aten.native_layer_norm_backward(g, x, [16], mean, rstd, w, b, wanted)
        return [r for r, is_wanted in zip(results, wanted) if is_wanted]

    check(backward, X.flip(0), X, mean, rstd, w, b)


def test_layer_norm_backward_without_weight():
    _, mean, rstd = aten.native_layer_norm(X, [16], None, None, 1e-5)
    mask = [True, False, False]
    check(
        lambda g, x, m, r: aten.native_layer_norm_backward(g, x, [16], m, r, None, None, mask)[0],
        X.flip(0), X, mean, rstd,
    )  # fmt: skip


def test_each_is_one_kernel():
    w = torch.ones(16)
    assert len(scheduled(lambda x: (x * 2).softmax(-1), X)) == 1
    assert len(scheduled(lambda x: x.log_softmax(-1) + 1, X)) == 1
    assert len(scheduled(lambda x, w: F.gelu(F.layer_norm(x, (16,), w, w)), X, w)) == 1
    assert len(scheduled(lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32), X, X)) == 1
    three = kernels(lambda x: F.layer_norm(x, (16,)), X)[0]
    assert sum(bool(loop.axes) for loop in three.loops) == 3
