from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.tracer.polyfills import statistics as twins

ROWS = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
TENSORS = {
    "rows": ROWS,
    "one row": ROWS[0],
    "columns": ROWS.t(),
    "complex": torch.complex(ROWS, ROWS.flip(1)),
    "whole numbers": (ROWS * 10).long(),
    "doubles": ROWS.double(),
    "one value": ROWS[:, :1].reshape(1, -1),
}


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("name", TENSORS)
def test_covariance_and_correlation_are_the_same_to_the_last_bit(name):
    x = TENSORS[name]
    same(twins.covariance(x), torch.cov(x))
    same(twins.covariance(x, correction=0), torch.cov(x, correction=0))
    same(twins.correlation(x), torch.corrcoef(x))


COUNTS = torch.tensor([1, 0, 2, 3, 1, 1, 2])
CHANCES = torch.rand(7, generator=torch.Generator().manual_seed(1))
WEIGHTS = {
    "counts": {"fweights": COUNTS},
    "chances": {"aweights": CHANCES},
    "both": {"fweights": COUNTS, "aweights": CHANCES.double()},
    "both, uncorrected": {"fweights": COUNTS, "aweights": CHANCES, "correction": 0},
    "corrected twice": {"aweights": CHANCES, "correction": 2},
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_weighted_covariances_are_the_same_to_the_last_bit(weights):
    for x in (ROWS, ROWS[0], TENSORS["complex"], TENSORS["whole numbers"], ROWS.double()):
        same(twins.covariance(x, **weights), torch.cov(x, **weights))


def test_weights_are_looked_at_when_the_graph_runs():
    def f(x, counts, chances):
        return torch.cov(x, fweights=counts, aweights=chances)

    compiled = minidynamo.compile(f, backend="aot_eager", fullgraph=True)
    for counts in (COUNTS, COUNTS + 1):
        same(compiled(ROWS, counts, CHANCES), f(ROWS, counts, CHANCES))
    refused = [(-COUNTS, CHANCES, "negative"), (COUNTS, -CHANCES, "negative"), (COUNTS, CHANCES * 0, "zero")]
    for counts, chances, message in refused:
        with pytest.raises(RuntimeError, match=message):
            compiled(ROWS, counts, chances)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert compiled(ROWS, COUNTS.clamp(max=0).index_fill(0, torch.tensor(2), 1), CHANCES).isnan().any()
    assert compiled.stats.graphs == 1


@pytest.mark.parametrize("length, r", [(5, 2), (4, 3), (3, 1), (3, 0), (2, 3)])
def test_combinations_come_in_the_same_order(length, r):
    for with_replacement in (False, True):
        x = torch.randn(length, requires_grad=True)
        actual, expected = (f(x, r, with_replacement) for f in (twins.combinations, torch.combinations))
        same(actual, expected)
        if expected.numel() and expected.requires_grad:
            weights = torch.randn_like(expected)
            same(*(torch.autograd.grad((made * weights).sum(), x)[0] for made in (actual, expected)))


@pytest.mark.parametrize(
    "refused",
    [
        lambda: twins.covariance(ROWS, fweights=torch.ones(7)),
        lambda: twins.covariance(ROWS, aweights=torch.ones(6)),
        lambda: twins.covariance(ROWS, correction=7),
        lambda: twins.covariance(ROWS[None]),
        lambda: twins.combinations(ROWS),
        lambda: twins.combinations(torch.ones(200), 3),
    ],
)
def test_what_a_twin_cannot_do_it_refuses(refused):
    with pytest.raises(NotImplementedError):
        refused()


def test_programs_with_statistics_are_captured_for_all_sizes():
    def decorrelation(x):
        return (torch.corrcoef(x.t()) - torch.eye(x.shape[1])).square().sum() + x.t().cov().diagonal().sum()

    compiled = minidynamo.compile(decorrelation, backend="aot_eager", fullgraph=True)
    for rows in (5, 6, 7, 8):
        x = torch.randn(rows, 3, requires_grad=True)
        same(compiled(x), decorrelation(x))
        same(*(torch.autograd.grad(fn(x), x)[0] for fn in (compiled, decorrelation)))
    assert compiled.stats.graphs == 2
