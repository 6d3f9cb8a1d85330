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


def test_what_makes_another_operation_of_it_takes_constants():
    def attention(x, scale):
        return F.scaled_dot_product_attention(x, x, x, scale=scale)

    def dropping(x, scale):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5, scale=scale)

    def written(x, scale):
        out = torch.empty(x.shape, dtype=torch.float64)
        torch.float_power(x.exp(), scale, out=out)
        return out

    for program, graphs in ((attention, 2), (dropping, 2), (written, 4)):
        f = compiled(program)
        for scale in (0.1, 0.2, 0.3, 0.4):
            torch.manual_seed(0)
            got = f(X, scale)
            torch.manual_seed(0)
            assert torch.equal(got, program(X, scale))
        assert f.stats.graphs == graphs


def test_one_number_in_two_places():
    """A number that also decides a shape is a constant in the shape."""

    def f(x, n):
        return F.pad(x, (n, 0), value=n)

    g = compiled(f)
    for n in (2, 3, 4, 5):
        assert torch.equal(g(X, n), f(X, n))
    assert g.stats.graphs == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_branches_as_well_as_beside_operands(backend):
    def f(x, n):
        def normed(x):
            return F.layer_norm(x, (3,), eps=n) + n

        return minidynamo.cond(x.sum() > n, normed, lambda x: F.pad(x, (0, 0), value=n) - n, (x,))

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
