"""A vision transformer: patches of an image as tokens, with an extra token for the class."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn


class MLP(nn.Sequential):
    """A perceptron of two layers, each followed by dropout."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__(
            OrderedDict(
                widen=nn.Linear(width, hidden),
                gelu=nn.GELU(),
                drop1=nn.Dropout(dropout),
                narrow=nn.Linear(hidden, width),
                drop2=nn.Dropout(dropout),
            )
        )


class DropPath(nn.Module):
    """Skips whole residual branches while training, for some images of the batch."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape; scales the kept elements up."""
        if self.probability == 0.0 or not self.training:
            return x
        kept = 1 - self.probability
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(kept)
        return x * mask.div_(kept)

    def extra_repr(self) -> str:
        """Returns the text in a printed module."""
        return f"probability={self.probability}"


class Block(nn.Module):
    """torch's own multi-head attention and an MLP, each after a norm and around a shortcut."""

    def __init__(self, width: int, heads: int, drop_path: float, norm: partial[nn.LayerNorm]) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = norm(width)
        self.mlp = MLP(width, 4 * width, 0.1)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, tokens, width) to the same shape."""
        normal = self.norm1(x)
        attended, _ = self.attention(normal, normal, normal, need_weights=False)
        x = x + self.drop_path(attended * self.scale)
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class VisionTransformer(nn.Module):
    """Maps images (batch, 3, size, size) to (batch, classes)."""

    def __init__(self, size: int = 16, patch: int = 4, width: int = 32, depth: int = 2, classes: int = 10) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        rates = [0.1 * index / max(depth - 1, 1) for index in range(depth)]
        self.blocks = nn.Sequential(*[Block(width, 4, rate, norm) for rate in rates])
        self.norm = norm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The score of each class."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        x = self.norm(self.blocks(x))
        scores: Tensor = self.head(x[:, 0])
        return scores


def example_inputs() -> tuple[Tensor]:
    """A batch of small images."""
    return (torch.randn(2, 3, 16, 16),)
