"""Modules that keep their last result: the next call frees the result, whatever backward has freed of its history."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounterWithBackend


class Attention(nn.Module):
    """A layer over the edges of a graph, which keeps its weights for inspection."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2, 1)
        self.weights: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = self.score(x).squeeze(-1).exp()
        self.weights = scores / torch.zeros(3).index_add(0, target, scores)[target]
        return torch.zeros(3, 2).index_add(0, target, x * self.weights[:, None])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_result_is_replaced_whose_history_backward_has_freed(backend: str) -> None:
    torch.manual_seed(0)
    module, target = Attention(), torch.tensor([0, 1, 1, 2])
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(module.forward, backend=counter, fullgraph=True)
    inputs = [torch.randn(4, 2) for _ in range(3)]
    seen = []
    for x in inputs:
        module.zero_grad()
        result = compiled(x, target)
        result.pow(2).sum().backward()
        assert module.weights is not None and module.score.weight.grad is not None
        seen.append((result.detach(), module.weights.detach(), module.score.weight.grad))
    assert counter.frame_count == 1
    for x, found in zip(inputs, seen):
        module.zero_grad()
        result = module(x, target)
        result.pow(2).sum().backward()
        torch.testing.assert_close(found, (result.detach(), module.weights.detach(), module.score.weight.grad))
