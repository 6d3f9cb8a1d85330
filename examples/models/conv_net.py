"""A small convolutional network for images of 8x8 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Two convolutions with batch norm, one pooling, one linear layer: images (batch, 1, 8, 8) to (batch, classes)."""

    def __init__(self, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(2 * width * 4 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The score of each class."""
        scores: Tensor = self.head(self.features(images).flatten(1))
        return scores


def example_inputs() -> tuple[Tensor]:
    """A batch of digits."""
    return (torch.rand(2, 1, 8, 8),)
