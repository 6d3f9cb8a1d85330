"""Small programs need no more memory than in eager, not even by one number."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import minidynamo
from benchmarks.memory import peak_bytes

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]

torch.manual_seed(0)
lstm, gru = torch.nn.LSTMCell(64, 64), torch.nn.GRUCell(64, 64)

PROGRAMS = {
    "trace": lambda x, w: (x @ w).trace(),
    "filled rows": lambda x, w: (x @ w).sin().index_fill(0, torch.arange(4), 0.5) * w,
    "windows": lambda x, w: x.unfold(0, 4, 2).sum() + (x @ w).unfold(1, 8, 4).square().sum(),
    "random leaky ReLU": lambda x, w: functional.rrelu(x @ w, training=True).sin(),
    "singular values": lambda x, w: torch.linalg.svdvals(x @ w),
    "nuclear norm": lambda x, w: torch.linalg.norm(x, "nuc"),
    "eigenvalues": lambda x, w: torch.linalg.eigvals(x).abs(),
    "eigenvalues of symmetric": lambda x, w: torch.linalg.eigvalsh(x + x.t()),
    "singular values and vectors": lambda x, w: torch.linalg.svd(x)[1],
    "LSTM cell": lambda x, w: lstm(x.detach(), (w.detach(), x.detach())),
    "LSTM cell of arguments": lambda x, w: lstm(x, (w, x)),
    "LSTM cell of one argument": lambda x, w: lstm(x.detach(), (w.detach(), x)),
    "GRU cell": lambda x, w: gru(x @ w, x),
    "binary cross entropy of sums": lambda x, w: functional.binary_cross_entropy_with_logits(
        (x @ w).sum(1), torch.ones(64)
    ),
    "binary cross entropy of a product": lambda x, w: functional.binary_cross_entropy_with_logits(
        x @ w, torch.ones(64, 64)
    ),
    "binary cross entropy of an argument": lambda x, w: functional.binary_cross_entropy_with_logits(x, w.detach()),
    "binary cross entropy of weighted positives": lambda x, w: functional.binary_cross_entropy_with_logits(
        x, w.detach(), pos_weight=torch.ones(64)
    ),
    "sum of what a generator yields": lambda x, w: sum(x[:k] @ w @ w.new_ones(64, 64) for k in [64] * 6),
    "largest of windows": lambda x, w: functional.max_pool2d(x.view(1, 1, 64, 64), 2),
    "means of windows": lambda x, w: functional.avg_pool2d(x.view(1, 1, 64, 64), 2),
    "means of few windows": lambda x, w: functional.adaptive_avg_pool2d(x.view(1, 1, 64, 64), 3),
}


def mean_squares(made):
    return sum(value.square().mean() for value in made)


def sums(made):
    """Each result gets one number, repeated, for its gradient."""
    sums = [value.sum() for value in made]
    made.clear()
    return sum(sums)


def as_they_are(x, w):
    return x, w


def computed(x, w):
    """What is given is no leaf, so that it may be written to."""
    return x * 1, w * 1


def measured(program, backend, trains, loss=mean_squares, given=as_they_are):
    """Results and gradients of a step, and its peak."""
    torch.manual_seed(0)
    x, w = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64).div_(8).requires_grad_()
    call = program if backend is None else minidynamo.compile(program, backend=backend, fullgraph=True)

    def step():
        torch.manual_seed(0)
        with torch.set_grad_enabled(trains):
            made = call(*given(x, w))
            made = list(made) if isinstance(made, tuple) else [made]
            found[:] = found or [value.detach().clone() for value in made]
            if trains:
                loss(made).backward()

    found = []
    step()
    values = [*found, *(leaf.grad for leaf in (x, w) if leaf.grad is not None)]
    x.grad = w.grad = None
    return values, peak_bytes(step)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_peaks_are_not_above_those_of_eager(name, trains, backend):
    values, peak = measured(PROGRAMS[name], None, trains)
    got, got_peak = measured(PROGRAMS[name], backend, trains)
    torch.testing.assert_close(got, values, rtol=1e-4, atol=1e-5)
    assert got_peak <= peak


SEVERAL = {
    "products": lambda x, w: ((x @ w).tanh(), x.sin() @ w),
    "four": lambda x, w: tuple((x @ w * k).sin() for k in range(1, 5)),
    "views": lambda x, w: ((x @ w).t().exp(), (x * w)[1:]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_of_several_results_are_laid_out_one_by_one(name, backend):
    values, peak = measured(SEVERAL[name], None, True, sums)
    got, got_peak = measured(SEVERAL[name], backend, True, sums)
    torch.testing.assert_close(got, values, rtol=1e-4, atol=1e-5)
    assert got_peak <= peak


OF_COMPUTED = {
    "written": lambda x, w: x.add_(1) @ w,
    "written in part": lambda x, w: (x[0].zero_(), x @ w)[1],
    "two": lambda x, w: x.add_(w).tanh() * w,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OF_COMPUTED)
def test_what_stands_for_arguments_takes_no_memory(name, backend):
    values, peak = measured(OF_COMPUTED[name], None, True, given=computed)
    got, got_peak = measured(OF_COMPUTED[name], backend, True, given=computed)
    torch.testing.assert_close(got, values, rtol=1e-4, atol=1e-5)
    assert got_peak <= peak
