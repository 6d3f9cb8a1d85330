"""Varying numbers that stay in a call, and their guards."""

import pytest
import torch
from torch.nn import functional as F

import minidynamo

X = torch.arange(6.0).view(2, 3) + 1


def compiled(f):
    return minidynamo.compile(f, backend="eager", fullgraph=True)


def test_the_condition_is_guarded_and_not_the_number():
    f = compiled(lambda x, p: F.dropout(x, p))
    for p in (0.1, 0.2, 0.3):
        f(X, p)
    assert f.stats.graphs == 2 and "relation `0 < p < 1`: to hold" in f.guards()
    assert f(X, 0.0) is X and f.stats.graphs == 3
    f(X, 0.4)
    assert f.stats.graphs == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_branches_as_well_as_beside_operands(backend):
    def f(x, n):
        def normed(x):
            return torch.sub(x, x.sin(), alpha=n) + n

        return minidynamo.cond(x.sum() > n, normed, lambda x: torch.lerp(x, x * 2, n) - n, (x,))

    g = minidynamo.compile(f, backend=backend, fullgraph=True)
    for n in (0.1, 0.2, 0.3, 0.4):
        assert torch.equal(g(X, n), f(X, n)) and torch.equal(g(-X, n), f(-X, n))
    assert g.stats.graphs == 2


@pytest.mark.parametrize("p", [-0.5, 1.5])
def test_numbers_out_of_range_raise_what_eager_raises(p):
    f = minidynamo.compile(lambda x, p: F.dropout(x, p), backend="eager")
    f(X, 0.1), f(X, 0.2)
    with pytest.raises(ValueError, match=f"between 0 and 1, but got {p}"):
        f(X, p)
