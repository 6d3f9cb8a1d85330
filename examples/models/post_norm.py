"""A post-norm transformer encoder and decoder for sequences of tokens, with padding and causal masks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Config:
    """Sizes of the model."""

    vocabulary: int = 50
    width: int = 32
    heads: int = 4
    layers: int = 2
    dropout: float = 0.1
    padding: int = 0


@dataclass
class Output:
    """Scores of the next tokens, and the loss where targets were given."""

    logits: Tensor
    loss: Tensor | None = None


class Attention(nn.Module):
    """Multi-head attention from `query` tokens to `memory` tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def split(self, x: Tensor) -> Tensor:
        """Maps (batch, tokens, width) to (batch, heads, tokens, width per head)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Computes attention; `mask` is true at the visible positions of a query."""
        q, k, v = self.split(self.query(query)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        mixed = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Residual(nn.Module):
    """Adds a layer's output to its input and normalizes the sum."""

    def __init__(self, layer: nn.Module, config: Config) -> None:
        super().__init__()
        self.layer = layer
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, *args: Tensor | None, **kwargs: Tensor | None) -> Tensor:
        """Passes the further arguments to the layer."""
        out: Tensor = self.norm(x + self.dropout(self.layer(x, *args, **kwargs)))
        return out


def feed_forward(config: Config) -> nn.Sequential:
    """A perceptron of two layers for each token."""
    return nn.Sequential(
        nn.Linear(config.width, 4 * config.width), nn.ReLU(), nn.Linear(4 * config.width, config.width)
    )


class EncoderLayer(nn.ModuleDict):
    """Self-attention and a perceptron."""

    def __init__(self, config: Config) -> None:
        super().__init__(
            {"attention": Residual(Attention(config), config), "mlp": Residual(feed_forward(config), config)}
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps (batch, tokens, width) to the same shape."""
        out: Tensor = self["mlp"](self["attention"](x, x, mask=mask))
        return out


class DecoderLayer(EncoderLayer):
    """Self-attention, attention to the source, and a perceptron."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self["cross"] = Residual(Attention(config), config)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None, visible: Tensor | None = None) -> Tensor:
        """`memory` (batch, n, width) is the encoded source; `visible` is true at the positions of tokens."""
        x = self["attention"](x, x, mask)
        x = self["cross"](x, memory, mask=visible)
        out: Tensor = self["mlp"](x)
        return out


class PostNormTransformer(nn.Module):
    """Maps source tokens (batch, n) and target tokens (batch, m) to scores (batch, m, vocabulary)."""

    positions: Tensor

    def __init__(self, config: Config | None = None, longest: int = 64) -> None:
        super().__init__()
        self.config = config = config or Config()
        self.embedding = nn.Embedding(config.vocabulary, config.width, padding_idx=config.padding)
        self.register_buffer("positions", sinusoids(longest, config.width), persistent=False)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def embed(self, tokens: Tensor) -> Tensor:
        """Maps tokens (batch, n) to (batch, n, width)."""
        embedded: Tensor = self.embedding(tokens) * math.sqrt(self.config.width) + self.positions[: tokens.size(1)]
        return embedded

    def forward(self, source: Tensor, target: Tensor, labels: Tensor | None = None) -> Output:
        """Returns scores, and the mean loss when there are `labels` (batch, m)."""
        visible = (source != self.config.padding)[:, None, None, :]
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, visible)
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, causal, memory=memory, visible=visible)
        logits = self.head(x)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(
                logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=self.config.padding, label_smoothing=0.1
            )
        return Output(logits=logits, loss=loss)


def sinusoids(length: int, width: int) -> Tensor:
    """Returns position codes (length, width): sines and cosines of falling frequency."""
    position = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    codes = torch.zeros(length, width)
    codes[:, 0::2] = torch.sin(position * frequency)
    codes[:, 1::2] = torch.cos(position * frequency)
    return codes


def example_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Two sources, one of them padded, with targets and labels."""
    source = torch.randint(1, 50, (2, 7))
    source[1, 5:] = 0
    target = torch.randint(1, 50, (2, 6))
    return source, target[:, :-1].contiguous(), target[:, 1:].contiguous()
