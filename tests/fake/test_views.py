"""Tests of minidynamo/fake/views.py: sizes and strides of views with symbolic sizes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

import minidynamo
from minidynamo import compat
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.fake.views import view_strides
from minidynamo.graph.unbacked_symints import hint_of


class _Sizes:
    """Symbols with values, the ShapeEnv that records decisions on them, and its mode."""

    def __init__(self) -> None:
        self.env = compat.symbolic().ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self._names = itertools.count()

    def symbol(self, value: int) -> Any:
        symbolic = compat.symbolic()
        source = symbolic.NamedSource(f"n{next(self._names)}")
        symbol = self.env.create_symbol(value, source, symbolic.DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=value)

    def empty(self, *sizes: Any) -> torch.Tensor:
        with self.mode:
            return torch.empty(sizes)

    def view(self, x: torch.Tensor, *shape: Any) -> torch.Tensor:
        with self.mode, compat.python_dispatcher():
            return x.view(*shape)


def test_a_view_has_the_requested_sizes():
    sizes = _Sizes()
    n = sizes.symbol(12)
    y = sizes.view(sizes.empty(n, 6), n // 2, 2, 3, 2)
    assert y.shape[1:] == (2, 3, 2) and all(type(size) is int for size in y.shape[1:])
    assert compat.are_same(y.shape[0], n // 2)
    assert [str(guard.expr) for guard in sizes.env.guards] == ["Eq(n, 2*((n//2)))".replace("n", str(n.node.expr))]


def test_a_view_that_holds_for_all_sizes_needs_no_guard():
    sizes = _Sizes()
    m, n = sizes.symbol(5), sizes.symbol(7)
    x = sizes.empty(m, n, 6)
    for shape in [(m, n, 2, 3), (m, n * 6), (m * n, 2, 3), (m, 1, n, 6, 1), (m, -1), (-1, 6), (m, n, 2, -1)]:
        y = sizes.view(x, *shape)
        assert y.is_contiguous()
    assert not sizes.env.guards


def test_an_inferred_size_is_short():
    sizes = _Sizes()
    n = sizes.symbol(12)
    y = sizes.view(sizes.empty(n, 32), n // 4, 4, -1)
    assert type(y.shape[-1]) is int and y.shape[-1] == 32
    with sizes.mode, compat.python_dispatcher():
        assert type(sizes.empty(n, 32).reshape(n // 4, 4, -1).shape[-1]) is int


@pytest.mark.parametrize("seed", range(4))
def test_views_have_the_strides_of_eager(seed):
    drawn = random.Random(seed)
    views = 0
    for _ in range(60):
        real = torch.empty([drawn.choice([1, 2, 3, 4, 6]) for _ in range(drawn.randint(1, 4))])
        real = real.permute(drawn.sample(range(real.dim()), real.dim()))
        if drawn.random() < 0.5:
            real = real[..., : max(1, real.shape[-1] // 2)]
        if drawn.random() < 0.3:
            real = real.expand(2, *real.shape)
        shape = _factors(real.numel(), drawn)
        sizes = _Sizes()
        symbolic = [size if size == 1 or drawn.random() < 0.3 else sizes.symbol(size) for size in real.shape]
        with sizes.mode:
            fake = torch.empty_strided(symbolic, real.stride())
        strides = view_strides(fake.shape, fake.stride(), shape)
        try:
            wanted = real.view(shape)
        except RuntimeError:
            assert strides is None
            continue
        views += 1
        assert strides is not None
        assert [*map(hint_of, strides)] == [*wanted.stride()], (real.shape, real.stride(), shape)
    assert views > 10


def _factors(number: int, drawn: random.Random) -> list[int]:
    shape = [1] * drawn.randint(1, 4)
    for prime in (2, 3):
        while number % prime == 0:
            number //= prime
            shape[drawn.randrange(len(shape))] *= prime
    return shape


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_views_of_any_size_equal_those_of_eager(backend):
    def program(x, n):
        blocks = x.reshape(n // 2, 2, -1).transpose(0, 1)
        return blocks.reshape(n, -1) * 2, x.t().reshape(-1, n // 2), blocks.flatten(1)

    compiled = minidynamo.compile(program, backend=backend)
    for n in (4, 6, 8, 10, 2, 7):
        x = torch.randn(n, 6, requires_grad=True)
        for found, wanted in zip(compiled(x, n), program(x, n)):
            assert torch.equal(found, wanted) and found.stride() == wanted.stride()
            gradients = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, wanted)]
            assert torch.equal(*gradients)
    assert compiled.stats.graphs <= 4
    with pytest.raises(RuntimeError, match="shape"):
        compiled(torch.randn(7, 5), 7)
