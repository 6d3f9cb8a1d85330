"""A residual network with batch norm, by default in the 18-layer form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two convolutions around a shortcut; if the shape changes, the shortcut is a convolution, too."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, channels in, h, w) to (batch, channels, h / stride, w / stride)."""
        identity = x
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        activated: Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """Maps images (batch, 3, h, w) to (batch, classes); `blocks` per stage of doubling width."""

    def __init__(self, classes: int = 10, blocks: Sequence[int] = (2, 2, 2, 2), width: int = 8) -> None:
        super().__init__()
        self.channels = width
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        stages = [self._stage(width << level, count, 1 + (level > 0)) for level, count in enumerate(blocks)]
        self.stages = nn.ModuleList(stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.channels, classes)

    def _stage(self, channels: int, count: int, stride: int) -> nn.Sequential:
        layers = [BasicBlock(self.channels, channels, stride)]
        self.channels = channels
        layers += [BasicBlock(channels, channels) for _ in range(1, count)]
        return nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """The score of each class."""
        x = self.relu(self.norm(self.stem(images)))
        for stage in self.stages:
            x = stage(x)
        x = torch.flatten(self.pool(x), 1)
        scores: Tensor = self.fc(x)
        return scores


def example_inputs() -> tuple[Tensor]:
    """A batch of small images."""
    return (torch.randn(2, 3, 16, 16),)
