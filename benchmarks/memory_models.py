"""Owns the models whose memory is measured, each with a batch: convolutions, a transformer, a deep MLP, an LSTM.

Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from examples.memory_figure import residual_net
from examples.models.transformer import Layer


def transformer() -> nn.Module:
    """Returns six pre-norm layers over sequences of 256, with dropout."""
    return nn.Sequential(*(Layer(128, 4, 0.1) for _ in range(6)), nn.Linear(128, 10))


def perceptron() -> nn.Module:
    """Returns twenty layers with dropout."""
    layers = [layer for _ in range(19) for layer in (nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers, nn.Linear(256, 10))


class Recurrent(nn.Module):
    """An LSTM over 64 steps, and scores of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(64, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, steps, features) to the score of each class."""
        state = (x.new_zeros(x.shape[0], 128), x.new_zeros(x.shape[0], 128))
        for step in x.unbind(1):
            state = self.cell(step, state)
        scores: Tensor = self.head(state[0])
        return scores


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual net of 18 layers": (residual_net, (24, 3, 112, 112)),
    "transformer of 6 layers": (transformer, (8, 256, 128)),
    "MLP of 20 layers": (perceptron, (1024, 256)),
    "LSTM over 64 steps": (Recurrent, (64, 64, 64)),
}


# Trained on small batches with accumulated gradients: the gradients take more memory than the activations.
ACCUMULATED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"MLP of 20 layers": (perceptron, (64, 256))}


class Gates(nn.Module):
    """A chain of activations, gates and norms: a model without its products."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, width) to the same shape."""
        for _ in range(6):
            gate, value = torch.sigmoid(x) * 2, torch.tanh(x - x.mean(-1, keepdim=True))
            x = x + torch.nn.functional.gelu(gate * value) / (1 + value * value)
        return x


class Swish(nn.Module):
    """Normalized, gated features in two widths."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) to the same shape."""
        for _ in range(4):
            y = torch.nn.functional.layer_norm(x, x.shape[-1:])
            x = x + torch.nn.functional.silu(y * 1.5 + 0.5) * torch.softmax(y, -1)
        return x


POINTWISE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gates": (Gates, (512, 1024)),
    "normalized swish": (Swish, (512, 1024)),
}
