"""Owns the training step of the cold-start and memory measurements: the demo's models on a batch of digits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.models import ConvNet, Transformer

BATCH = 64
MODELS: dict[str, Callable[[], nn.Module]] = {"conv net": ConvNet, "transformer": Transformer}


def batch() -> tuple[Tensor, Tensor]:
    """Images (64, 1, 8, 8) and classes (64)."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(BATCH, 1, 8, 8, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def step(model: nn.Module, images: Tensor, classes: Tensor) -> None:
    """Runs forward, loss and backward; drops the gradients, so that every step starts with the same memory."""
    loss = functional.cross_entropy(model(images), classes)
    loss.backward()
    model.zero_grad(set_to_none=True)
