"""A graph convolution network: nodes gather the features of their neighbours along the edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class GraphConv(nn.Module):
    """Averages over each node and its neighbours: nodes (n, features in) to (n, features)."""

    def __init__(self, features_in: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features_in, features, bias=False)
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """`edges` (2, e) has the sender and the receiver of each edge."""
        count = nodes.size(0)
        loops = torch.arange(count, device=nodes.device).expand(2, -1)
        sender, receiver = torch.cat([edges, loops], dim=1)
        degree = torch.zeros(count).index_add_(0, receiver, torch.ones(receiver.numel()))
        scale = degree.rsqrt()
        messages = self.linear(nodes)[sender] * (scale[sender] * scale[receiver]).unsqueeze(-1)
        gathered = torch.zeros(count, messages.size(1)).index_add_(0, receiver, messages)
        return gathered + self.bias


class GraphAttention(nn.Module):
    """Weights neighbours by a learned score, with a softmax over the edges of each receiver."""

    def __init__(self, features_in: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features_in, features, bias=False)
        self.send = nn.Parameter(torch.randn(features) * 0.1)
        self.receive = nn.Parameter(torch.randn(features) * 0.1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """`edges` (2, e) has the sender and the receiver of each edge."""
        sender, receiver = edges.unbind(0)
        states = self.linear(nodes)
        scores = functional.leaky_relu((states @ self.send)[sender] + (states @ self.receive)[receiver], 0.2)
        highest = torch.full((len(nodes),), float("-inf")).scatter_reduce(0, receiver, scores.detach(), "amax")
        weights = torch.exp(scores - highest[receiver])
        total = torch.zeros(len(nodes)).scatter_add(0, receiver, weights)
        weights = weights / (total[receiver] + 1e-9)
        index = receiver[:, None].expand(-1, states.size(1))
        return torch.zeros_like(states).scatter_add(0, index, weights[:, None] * states[sender])


class GraphNet(nn.Module):
    """Maps nodes (n, features), edges (2, e) and the graph of each node (n) to scores (graphs, classes)."""

    def __init__(self, features: int = 6, hidden: int = 16, classes: int = 3, graphs: int = 2) -> None:
        super().__init__()
        self.graphs = graphs
        self.conv = GraphConv(features, hidden)
        self.attention = GraphAttention(hidden, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, nodes: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        """Returns the score of each class for each graph."""
        x = functional.dropout(self.conv(nodes, edges).relu(), p=0.5, training=self.training)
        x = functional.elu(self.attention(x, edges))
        pooled = torch.zeros(self.graphs, x.size(1)).index_add(0, batch, x)
        sizes = torch.zeros(self.graphs).scatter_add_(0, batch, torch.ones(len(batch)))
        scores: Tensor = self.head(pooled / sizes.clamp(min=1).unsqueeze(1))
        return scores


def example_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Returns two graphs with five and four nodes."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 5, 6, 7, 8], [1, 2, 3, 4, 0, 2, 6, 7, 8, 5]])
    return torch.randn(9, 6), edges, torch.tensor([0] * 5 + [1] * 4)
