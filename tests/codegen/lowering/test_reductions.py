"""Folds: every operation, dtype and corner against eager."""

import pytest
import torch

from tests.codegen.graphs import check

pytestmark = pytest.mark.cpp

X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))


def everything(x):
    return (
        x.sum(), x.sum((0, 2)), x.sum(1, keepdim=True), x.amax(0), x.amin((1, 2)), x.amax(), x.max(), x.min(),
        *x.max(1), *x.min(-1, keepdim=True), x.argmax(), x.argmin(2, keepdim=True), x.any(), x.any(1), x.all(0),
    )  # fmt: skip


def of_floats(x):
    return x.mean(), x.mean((0, 1)), x.prod(1), x.prod(), x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)


def spread(x):
    return (
        x.var(), x.var(1), x.var(0, correction=0), x.std((1, 2), keepdim=True), x.std(2, unbiased=False),
        *torch.var_mean(x, 1), *torch.var_mean(x, (0, 2), keepdim=True),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_floats(dtype):
    check(everything, X.to(dtype))
    check(of_floats, X.to(dtype))
    check(spread, X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers(dtype):
    check(everything, (X * 3).abs().to(dtype), exact=True)
    check(lambda x: (x.prod(1), x.sum(dtype=torch.float32), x.sum(0, dtype=torch.int32)), (X * 3).abs().to(dtype))


def test_bools():
    check(
        lambda x: (x.sum(), x.any(0), x.all((1, 2)), x.sum(1, dtype=torch.float32), x.any(()), x.all(())),
        X > 0,
        exact=True,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.int64], ids=str)
def test_sums_convert_what_they_add_to_the_dtype_that_is_asked_for(dtype):
    x = torch.tensor([32767, -32768, 32766, -32767, 0, 1, 3]).to(dtype)
    check(lambda x: [x.sum(dtype=d) for d in (torch.float16, torch.bfloat16, torch.int8)], x, exact=True)
    check(lambda x: [x.float().mean(dtype=d) for d in (torch.float16, torch.bfloat16)], x, exact=True)


def test_sums_and_products_in_bool():
    x = torch.tensor([[4] * 256, [0, 4] * 128, [0] * 256], dtype=torch.uint8)
    check(lambda x: [f(d, dtype=torch.bool) for f in (x.sum, x.prod) for d in (0, 1)], x, exact=True)


def test_special_values():
    x = X.clone()
    x[0, 0, 0] = torch.nan
    x[1, 2] = -torch.inf
    x[2, 1] = torch.inf
    check(lambda x: (*everything(x), x.logsumexp(2)), x)


def test_rows_with_infinite_and_huge_elements():
    inf, nan = torch.inf, torch.nan
    rows = [[inf, 1, 2], [1, inf, 2], [1, 2, inf], [inf, inf, 1], [1, 2, nan], [nan, 1, inf], [inf] * 3]
    rows += [[-inf] * 3, [1e30, -1e30, 0], [3e38] * 3, [1e20, 1, 2]]
    x = torch.tensor(rows)
    for each in (x, x.double(), x.bfloat16(), x.t().contiguous().t()):
        check(lambda x: (x.var(1), x.std(1), torch.var_mean(x, 1)[0]), each)
        check(lambda x: (*torch.var_mean(x, 1), *torch.var_mean(x, 1, correction=0)), each[8:])
    check(lambda x: (x.logsumexp(1), x.softmax(1), x.log_softmax(1), x.softmax(0), x.mean(1), x.sum(0)), x)
    check(lambda x: torch.native_layer_norm(x, (3,), None, None, 1e-5), x[:8])


def test_first_of_equals_wins():
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    check(lambda x: (x.argmax(1), x.argmin(0), x.argmax(), *x.max(0)), x, exact=True)
    transposed = torch.zeros(4, 3).t()  # the order in memory differs from the order of positions
    transposed[0, 3] = transposed[2, 0] = 1
    check(lambda x: (x.argmax(), (-x).argmin(), x.argmin(), x.argmax(0)), transposed, exact=True)
    check(lambda x: (x.argmax(), x.argmin()), transposed / 0, exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_of_zeros_wins(dtype):
    x = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 0.0, -1.0], [-0.0, -0.0, 0.0], [1.0, 0.0, -0.0]], dtype=dtype)
    x = x.repeat(1, 9)[:, :26]
    check(lambda x: (*x.max(1), *x.min(0), *x.int().max(0), *x.bool().max(1)), x, exact=True)
    x[1, 4] = x[2, 7] = x[2, 3] = torch.nan
    check(lambda x: (*x.max(1), *x.min(0)), x, exact=True)


def test_dimensions_of_size_one_and_scalars():
    check(lambda x: (x.sum(0), x.amax(0), x.argmax(0), *x.max(0), x.mean()), X[:1])
    check(lambda x: (x.sum(), x.amax(), x.argmax(), *x.max(0), x.mean(), x.prod()), X[0, 0, 0])
    check(lambda x: (x.std(0, correction=0), *torch.var_mean(x, -1, correction=0)), X[0, 0, 0])


def test_what_is_computed_from_folds_of_one_element():
    x = X[:1, :, :1]
    check(lambda x: (x.mean(0), x.mean((0, 2)), x.var(0, correction=0), x.logsumexp(2), x.sum(0).exp()), x)
    check(lambda x: (x.mean((0, 2), True), x.bfloat16().mean(2), x.mean() + x.amax((0, 2))), x)


def test_empty():
    check(lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(0), x.any(0), x.all(), x.mean(1), x.amax(1)), torch.ones(0, 3))
