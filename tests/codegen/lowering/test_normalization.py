"""Rows: softmax, layer norm and their gradients against eager, each as a single kernel."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern
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
    passes = kernels(lambda x: F.layer_norm(x, (16,)), X)[0]  # the sum, the deviations, then the elements
    assert sum(bool(loop.axes) for loop in passes.loops) == 3


IMAGES = torch.randn(4, 6, 5, 3, generator=torch.Generator().manual_seed(2))
STATISTICS = [torch.linspace(-1, 1, 6), torch.linspace(0.5, 2, 6)]
AFFINE = [torch.linspace(2, 1, 6), torch.linspace(-1, 3, 6)]


def in_evaluation(x, *given):
    return aten.native_batch_norm(x, *given, False, 0.1, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_batch_norm_by_running_statistics_is_what_eager_computes_to_the_last_bit(dtype):
    x, w, b, *statistics = (t.to(dtype) for t in (IMAGES, *AFFINE, *STATISTICS))
    check(in_evaluation, x, w, b, *statistics, exact=True)
    check(lambda x, *s: in_evaluation(x, None, None, *s), x, *statistics, exact=True)
    check(lambda x, w, *s: in_evaluation(x, w, None, *s), x, w, *statistics, exact=True)


def test_batch_norm_of_rows_and_of_other_layouts():
    for x in (IMAGES[:, :, 0, 0], IMAGES[..., 0], IMAGES.contiguous(memory_format=torch.channels_last), IMAGES[:0]):
        check(in_evaluation, x, *AFFINE, *STATISTICS)


def test_batch_norm_and_what_follows_are_one_kernel():
    steps = scheduled(lambda x, y, *p: (in_evaluation(x, *p)[0] + y).relu(), IMAGES, IMAGES, *AFFINE, *STATISTICS)
    assert not any(isinstance(step, Extern) for step in steps)
    assert sum(IMAGES.shape == written.shape for step in steps for written in step.writes) == 1


def test_batch_norm_by_statistics_of_its_own_or_of_half_types_is_left_to_torch():
    unaliased_result = scheduled(lambda x: aten.native_batch_norm(x, *[None] * 4, True, 0.1, 1e-5)[0], IMAGES)
    halves = [scheduled(lambda *a: in_evaluation(*a)[0], x, *AFFINE, *STATISTICS) for x in (IMAGES.half(),)]
    assert all(isinstance(steps[0], Extern) for steps in (unaliased_result, *halves))
