"""Programs that use einops, with cached recipes: whole, and compiled twice for dynamic sizes."""

from __future__ import annotations

import einops
import pytest
import torch
from einops.layers.torch import Rearrange, Reduce

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
einops.rearrange(torch.ones(1), "a -> a")  # imports the libraries once in a process


LAYERS = torch.nn.Sequential(Rearrange("b h w c -> b c h w"), torch.nn.Conv2d(6, 4, 1), Reduce("b c h w -> b c", "sum"))


@programs(None)
class Cases:
    patches = lambda x: einops.rearrange(x, "b (h p) (w q) c -> b (h w) (p q c)", p=2, q=2)
    layers = lambda x: LAYERS(x)

    def means(x):
        pooled = einops.reduce(x, "b h w c -> b c", "mean") + einops.reduce(x, "b h w c -> b c", "max")
        return einops.repeat(pooled, "b c -> b k c", k=3)

    def attention(x):
        q = einops.rearrange(x, "b h w (n c) -> b n (h w) c", n=2)
        weights = einops.einsum(q, q, "b n i c, b n j c -> b n i j").softmax(-1)
        mixed = einops.einsum(weights, q, "b n i j, b n j c -> b n i c")
        return einops.rearrange(mixed, "b n (h w) c -> b h w (n c)", h=x.shape[1])

    def packed(x):
        y, shapes = einops.pack([x, x[:, :1]], "b * w c")
        first, second = einops.unpack(y * 2, shapes, "b * w c")
        return first + second


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", programs)
def test_whole_and_for_any_batch(program, backend):
    compiled = minidynamo.compile(program.fn, backend=backend)
    for batch in (2, 3, 4, 5):
        x = torch.randn(batch, 4, 4, 6)
        assert torch.equal(compiled(x), program.fn(x))
    assert compiled.stats.recompiles == 1 and "no graph breaks" in compiled.breaks()


def test_a_pattern_that_does_not_fit_raises_what_einops_raises():
    @minidynamo.compile(backend="eager")
    def program(x):
        return einops.rearrange(x, "b (h k) -> b h k", k=3)

    assert program(torch.ones(2, 6)).shape == (2, 2, 3)
    with pytest.raises(einops.EinopsError, match="can't divide axis of length 7"):
        program(torch.ones(2, 7))


def test_what_a_cache_has_for_one_pattern_says_nothing_about_another():
    def both(x, y):
        return [einops.rearrange(t, "b (h p) (w q) c -> b (h w) (p q c)", p=2, q=2).sum(1) for t in (x, y)]

    x, y = torch.randn(2, 4, 4, 6), torch.randn(2, 8, 6, 4)
    expected = both(x, y)  # fills the caches, so that their numbers are read
    compiled = minidynamo.compile(both, backend="eager")
    for first, second in zip(expected, compiled(x, y)):
        assert torch.equal(first, second)
    # No number is computed from a number in a cache: entries of different calls are unrelated.
    assert " // " not in str(compiled.guards())
