"""Owns the models and steps of the cold-start and memory measurements, on a batch of digits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.models import ConvNet, Transformer

BATCH = 64


def perceptron() -> nn.Module:
    """Maps images (batch, 1, 8, 8) to the score of each class by two hidden layers."""
    hidden = [nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "conv net": ConvNet,
    "transformer": Transformer,
    "perceptron": perceptron,
}


def batch() -> tuple[Tensor, Tensor]:
    """Images (64, 1, 8, 8) and classes (64)."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(BATCH, 1, 8, 8, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def step(model: nn.Module, images: Tensor, classes: Tensor) -> None:
    """Runs forward, loss and backward; drops the gradients, so that every step starts with the same memory."""
    loss = functional.cross_entropy(model(images), classes)
    loss.backward()
    model.zero_grad(set_to_none=True)


def infer(model: nn.Module, images: Tensor, classes: Tensor) -> None:
    """Computes the scores without gradients."""
    with torch.no_grad():
        model(images)
