"""A mixture of experts with top-k routing: each token is processed by the experts that its router prefers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Expert(nn.Module):
    """A gated perceptron of two layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (tokens, width) to the same shape."""
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class MixtureOfExperts(nn.Module):
    """Maps tokens (batch, n, width) to the same shape, and the loss that balances the experts.

    The experts see all tokens, with a weight of zero for unassigned tokens. With `sparse` each expert sees only its
    assigned tokens: their number depends on data, so the number of rows is only known when the program runs.
    """

    def __init__(self, width: int = 16, experts: int = 4, top_k: int = 2, *, sparse: bool = False) -> None:
        super().__init__()
        self.top_k, self.sparse = top_k, sparse
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, 2 * width) for _ in range(experts))

    def balance(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Returns a loss that is smallest when all experts get the same share of the tokens."""
        count = len(self.experts)
        share = functional.one_hot(chosen, count).float().mean(dim=(0, 1))
        return count * torch.sum(share * probabilities.mean(dim=0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens and the loss."""
        tokens = self.norm(x).flatten(0, 1)
        probabilities = self.router(tokens).softmax(dim=-1)
        weights, chosen = torch.topk(probabilities, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = self.mix_sparse(tokens, weights, chosen) if self.sparse else self.mix(tokens, weights, chosen)
        return x + mixed.view_as(x), self.balance(probabilities, chosen)

    def mix(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Runs every expert on every token."""
        share = torch.zeros(tokens.size(0), len(self.experts)).scatter(1, chosen, weights)
        return sum(
            (expert(tokens) * share[:, index, None] for index, expert in enumerate(self.experts)),
            start=torch.zeros_like(tokens),
        )

    def mix_sparse(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Runs every expert on its assigned tokens."""
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == index)
            mixed.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return mixed


def example_inputs() -> tuple[Tensor]:
    """Two sequences of states."""
    return (torch.randn(2, 5, 16),)
