"""Stacks of equal transformer blocks, each compiled alone: they take the compiles of two blocks."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import minidynamo


class Attention:
    """An attention processor, an object per block."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, scale=self.scale)


class Block(nn.Module):
    def __init__(self, layer_idx, width=8):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 16), nn.Linear(16, width), nn.Dropout(0.1)
        self.layer_idx, self.processor = layer_idx, Attention(0.5)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.processor(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.drop(self.down(F.gelu(self.up(x)))) / (self.layer_idx + 1)


def with_hooks(blocks):
    """Adds hooks to each fourth block from the first two on."""
    for number, block in enumerate(blocks):
        if number % 4 < 2:
            block.register_forward_hook(lambda module, args, result: result * 0.5)


VARIANTS = {
    "plain": lambda blocks: [setattr(block, "layer_idx", 1) for block in blocks],
    "numbered": lambda blocks: None,
    "hooks": with_hooks,
}


def stack(count, variant):
    torch.manual_seed(0)
    blocks = [Block(number) for number in range(count)]
    VARIANTS[variant](blocks)
    return blocks


def run(functions, blocks, training):
    """Returns the result of the stack, and after a training step the gradients of all parameters."""
    torch.manual_seed(1)
    x = torch.randn(2, 3, 8, requires_grad=training)
    for block in blocks:
        block.train(training)
    for function in functions:
        x = function(x)
    if not training:
        return [x]
    x.square().sum().backward()
    return [x.detach(), *(p.grad for block in blocks for p in block.parameters())]


@pytest.mark.parametrize("wrap", [lambda block: block, functools.partial], ids=["module", "partial"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [6, pytest.param(24, marks=pytest.mark.slow)])
def test_a_stack_takes_the_compiles_of_two_blocks(count, backend, variant, training, wrap):
    compiles = []
    for number in (4 if variant == "hooks" else 2, count):
        blocks, expected = stack(number, variant), stack(number, variant)
        for block in (*blocks, *expected):
            block.drop.p = 0.0  # random numbers of generated code are others
        functions = [minidynamo.compile(wrap(block), backend=backend) for block in blocks]
        with torch.set_grad_enabled(training):
            results = run(functions, blocks, training)
        for one, other in zip(results, run(expected, expected, training)):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        compiles.append(sum(minidynamo.stats(block).compiles for block in blocks))
    assert compiles[0] == compiles[1] <= (3 if variant == "hooks" else 2)


def test_blocks_with_several_dropout_rates_draw_as_eager_does():
    def rates(blocks):
        for number, block in enumerate(blocks):
            block.drop.p = 0.1 * (number + 1)
        return blocks

    blocks, expected = rates(stack(4, "plain")), rates(stack(4, "plain"))
    functions = [minidynamo.compile(block, backend="aot_eager") for block in blocks]
    for one, other in zip(run(functions, blocks, True), run(expected, expected, True)):
        torch.testing.assert_close(one, other)
    assert sum(minidynamo.stats(block).compiles for block in blocks) == 2
