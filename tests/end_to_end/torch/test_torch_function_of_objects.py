"""Torch functions on objects that are not tensors: the graph ends, and torch calls `__torch_function__`."""

import pytest
import torch

from minidynamo.testing import assert_same_as_eager


class Box:
    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*(arg.x if isinstance(arg, Box) else arg for arg in args), **(kwargs or {}))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.sin(Box(x * 2)) + 1,
        lambda x: torch.add(x, Box(x + 1), alpha=2),
        lambda x: (x + Box(x * 2)) * 2,
        lambda x: x.sub(Box(x * 2)) + 1,
        lambda x: torch.nn.functional.relu(input=x) + torch.nn.functional.relu(Box(x - 1)),
        lambda x: torch.nn.functional.softmax(Box(x * 2), x.dim() - 1),
        lambda x: torch.stack([x, Box(x * 2).x]) + torch.einsum("i,i->", x, Box(x)),
    ],
)
def test_the_graph_ends_before_the_function(program):
    compiled = assert_same_as_eager(program, lambda: torch.randn(3), lambda: torch.randn(5))
    assert compiled.stats.graph_breaks
