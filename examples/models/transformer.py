"""A small pre-norm transformer encoder that reads an image row by row."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head self-attention over (batch, tokens, width), in elementary operations."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the attention output of each token."""
        batch, tokens, width = x.shape
        split = self.project_in(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        weights = self.dropout(functional.softmax(scores, dim=-1))
        mixed = (weights @ value).transpose(1, 2).reshape(batch, tokens, width)
        out: Tensor = self.project_out(mixed)
        return out


class Layer(nn.Module):
    """An encoder layer: attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, tokens, width) to the same shape."""
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        hidden = functional.gelu(self.widen(self.norm_mlp(x)))
        update: Tensor = self.dropout(self.narrow(hidden))
        return x + update


class Transformer(nn.Module):
    """Encoder over the rows of an image: (batch, 1, rows, columns) to (batch, classes)."""

    def __init__(
        self,
        classes: int = 10,
        rows: int = 8,
        columns: int = 8,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(columns, width)
        self.position = nn.Parameter(torch.randn(rows, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The score of each class."""
        x = self.embed(images.squeeze(1)) + self.position
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x).mean(dim=1))
        return scores


def example_inputs() -> tuple[Tensor]:
    """A batch of digits."""
    return (torch.rand(2, 1, 8, 8),)
