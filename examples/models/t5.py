"""An encoder in the style of T5: attention with a learned bias for each bucket of relative positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RelativeBias(nn.Module):
    """A bias (1, heads, queries, keys) by the distance of key and query; far distances share buckets."""

    def __init__(self, heads: int, buckets: int, furthest: int) -> None:
        super().__init__()
        self.buckets, self.furthest = buckets, furthest
        self.bias = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Returns the bucket of each distance: exact near zero, logarithmic further away, half for each direction."""
        half = self.buckets // 2
        result = (distance > 0).long() * half
        distance = distance.abs()
        exact = half // 2
        is_near = distance < exact
        logarithmic = torch.log(distance.float() / exact) / math.log(self.furthest / exact) * (half - exact)
        far = torch.min(exact + logarithmic.long(), torch.full_like(distance, half - 1))
        result += torch.where(is_near, distance, far)
        return result

    def forward(self, queries: int, keys: int) -> Tensor:
        """Returns the bias for sequences of the given lengths."""
        device = self.bias.weight.device
        context = torch.arange(queries, dtype=torch.long, device=device)[:, None]
        memory = torch.arange(keys, dtype=torch.long, device=device)[None, :]
        values: Tensor = self.bias(self.bucket(memory - context))
        return values.permute([2, 0, 1]).unsqueeze(0)


class Attention(nn.Module):
    """Unscaled attention, as in T5; the first layer owns the bias that all layers add."""

    def __init__(self, width: int, heads: int, *, has_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative: RelativeBias | None = RelativeBias(heads, 8, 32) if has_bias else None

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the attention output of each token, and the bias for the next layer."""
        batch, length, _ = x.shape

        def shape(states: Tensor) -> Tensor:
            return states.view(batch, length, self.heads, -1).transpose(1, 2)

        scores = torch.matmul(shape(self.q(x)), shape(self.k(x)).transpose(3, 2))
        if bias is None:
            if self.relative is None:
                bias = torch.zeros((1, self.heads, length, length), dtype=scores.dtype)
            else:
                bias = self.relative(length, length)
            if mask is not None:
                bias = bias + mask
        scores += bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        mixed = torch.matmul(weights, shape(self.v(x))).transpose(1, 2).contiguous().view(batch, length, -1)
        return self.o(mixed), bias


class Layer(nn.Module):
    """Attention and MLP, each after an RMS norm and around a shortcut."""

    def __init__(self, width: int, heads: int, *, has_bias: bool) -> None:
        super().__init__()
        self.norm_attention = nn.RMSNorm(width)
        self.attention = Attention(width, heads, has_bias=has_bias)
        self.norm_mlp = nn.RMSNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, **context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the new states and the bias."""
        update, bias = self.attention(self.norm_attention(x), **context)
        x = x + update
        return x + self.mlp(self.norm_mlp(x)), bias


class T5Encoder(nn.Module):
    """Maps tokens (batch, n) and a mask of real tokens (batch, n) to states (batch, n, width)."""

    def __init__(self, vocabulary: int = 50, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, has_bias=index == 0) for index in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Returns the states of the last layer."""
        x = self.embedding(tokens)
        if attention_mask is None:
            attention_mask = torch.ones_like(tokens)
        hidden = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        bias = None
        for layer in self.layers:
            x, bias = layer(x, mask=hidden, bias=bias)
        states: Tensor = self.norm(x)
        return states


def example_inputs() -> tuple[Tensor, Tensor]:
    """Two sequences, the second one padded."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return torch.randint(50, (2, 12)), mask
