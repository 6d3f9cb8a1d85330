"""Kernels that are equal up to names."""

import pytest
import torch
from torch import nn

from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.kernel_dedup import distinct, representatives
from tests.codegen.graphs import trace


def compiled(function, *args, target="cpp"):
    return compile_graph(trace(function, *args), target=target)


def pairs(first, second):
    """Returns two kernels with an ATen call between."""
    return compiled(lambda x: (first(x), second(x @ x)), torch.randn(8, 8)).program.kernels


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_layers_share_their_kernels(target):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, x):
            return x + self.norm(torch.tanh(self.linear(x)) * 2)

    blocks, x = nn.Sequential(*(Block() for _ in range(4))).requires_grad_(False), torch.randn(5, 16)
    names, values = zip(*blocks.named_parameters())

    def run(x, *values):
        return torch.func.functional_call(blocks, dict(zip(names, values)), x)

    made = compiled(run, x, *values, target=target)
    assert len(made.program.kernels) == 4 and len(distinct(representatives(made.program.kernels))) == 1
    assert len(set(made.launchers.values())) == 1
    assert made.kernel_source.count("ENTRY(" if target == "cpp" else "@jit") == 1
    torch.testing.assert_close(made.call([x, *values])[0], blocks(x))


def test_the_first_stands_for_all():
    kernels = pairs(lambda x: x.exp() + 1, lambda x: x.exp() + 1)
    assert representatives(kernels) == dict.fromkeys((k.name for k in kernels), kernels[0])


@pytest.mark.parametrize(
    "second",
    [
        lambda x: x.exp() + 2,
        lambda x: x.exp() - 1,
        lambda x: x.exp() + x,
        lambda x: (x.exp() + 1).t().contiguous(),
        lambda x: x[:4].exp() + 1,
        lambda x: (x.exp() + 1).half(),
    ],
)
def test_others_do_not(second):
    kernels = pairs(lambda x: x.exp() + 1, second)
    assert distinct(representatives(kernels)) == list(kernels)


def test_zeros_of_both_signs_are_two():
    kernels = pairs(lambda x: torch.where(x > 1, x, 0.0), lambda x: torch.where(x > 1, x, -0.0))
    assert distinct(representatives(kernels)) == list(kernels)
