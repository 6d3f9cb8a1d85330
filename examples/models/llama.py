"""A decoder in the style of Llama: rotary positions, grouped-query attention, RMS norm, gated MLP, and a KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Sizes of the model; `kv_heads` divides `heads`."""

    vocabulary: int = 64
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    longest: int = 16
    theta: float = 10000.0

    @property
    def head_width(self) -> int:
        """Numbers per head."""
        return self.width // self.heads


class KVCache:
    """Keys and values of all tokens so far, in memory for the longest sequence."""

    def __init__(self, config: Config, batch: int) -> None:
        shape = (batch, config.kv_heads, config.longest, config.head_width)
        self.keys = [torch.zeros(shape) for _ in range(config.layers)]
        self.values = [torch.zeros(shape) for _ in range(config.layers)]

    def update(self, layer: int, positions: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new tokens' keys and values at `positions`; returns the keys and values of all positions."""
        self.keys[layer].index_copy_(2, positions, key)
        self.values[layer].index_copy_(2, positions, value)
        return self.keys[layer], self.values[layer]


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, computed in float32."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape and dtype of `x`."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).type_as(x) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs of (batch, heads, tokens, width) by the angle of their position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention in which groups of query heads share keys and values."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.q_proj = nn.Linear(config.width, config.heads * config.head_width, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_width, config.width, bias=False)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], positions: Tensor, mask: Tensor, cache: KVCache | None
    ) -> Tensor:
        """`mask` (tokens, keys) is added to the scores."""
        batch, tokens, _ = x.shape
        query = self.q_proj(x).view(batch, tokens, self.config.heads, -1).transpose(1, 2)
        key = self.k_proj(x).view(batch, tokens, self.config.kv_heads, -1).transpose(1, 2)
        value = self.v_proj(x).view(batch, tokens, self.config.kv_heads, -1).transpose(1, 2)
        query, key = rotate(query, *rotary), rotate(key, *rotary)
        if cache is not None:
            key, value = cache.update(self.layer, positions, key, value)
        groups = self.config.heads // self.config.kv_heads
        key, value = (kv.repeat_interleave(groups, dim=1) for kv in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class Layer(nn.Module):
    """Attention and a gated MLP, each after a norm and around a shortcut."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.width)
        self.attention = Attention(config, layer)
        self.post_norm = RMSNorm(config.width)
        self.gate_proj = nn.Linear(config.width, 3 * config.width, bias=False)
        self.up_proj = nn.Linear(config.width, 3 * config.width, bias=False)
        self.down_proj = nn.Linear(3 * config.width, config.width, bias=False)

    def forward(self, x: Tensor, **attention: object) -> Tensor:
        """Maps (batch, tokens, width) to the same shape."""
        x = x + self.attention(self.input_norm(x), **attention)
        hidden = self.post_norm(x)
        out: Tensor = x + self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Llama(nn.Module):
    """Maps tokens (batch, n) to scores (batch, n, vocabulary)."""

    inverse_frequency: Tensor

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        self.config = config = config or Config()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        exponent = torch.arange(0, config.head_width, 2) / config.head_width
        self.register_buffer("inverse_frequency", config.theta**-exponent, persistent=False)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines (tokens, head width) of the angle at each position."""
        angles = torch.outer(positions.float(), self.inverse_frequency)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def forward(self, tokens: Tensor, positions: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        """With a cache, `positions` (n) are the positions of the tokens in the sequence."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        keys = torch.arange(self.config.longest, device=tokens.device) if cache is not None else positions
        mask = torch.zeros(len(positions), len(keys), device=tokens.device)
        mask = mask.masked_fill(keys[None, :] > positions[:, None], float("-inf"))
        x = self.embedding(tokens)
        rotary = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotary=rotary, positions=positions, mask=mask, cache=cache)
        scores: Tensor = self.lm_head(self.norm(x))
        return scores


def generate(model: Llama, prompt: Tensor, count: int) -> Tensor:
    """Appends `count` tokens to `prompt` (batch, n), each with the highest score."""
    cache = KVCache(model.config, prompt.shape[0])
    tokens, positions, found = prompt, torch.arange(prompt.shape[1]), [prompt]
    with torch.no_grad():
        for _ in range(count):
            scores = model(tokens, positions, cache)
            tokens = scores[:, -1:].argmax(-1)
            positions = positions[-1:] + 1
            found.append(tokens)
    return torch.cat(found, dim=1)


def example_inputs() -> tuple[Tensor]:
    """Two sequences of tokens."""
    return (torch.randint(64, (2, 9)),)


def cached_inputs() -> tuple[Tensor, Tensor, KVCache]:
    """A step of generation: a token for each of two sequences, its position, and a cache."""
    return torch.randint(64, (2, 1)), torch.tensor([3]), KVCache(Config(), 2)
