"""A U-Net: down to coarse features and up again, with a skip connection at every level."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DoubleConv(nn.Module):
    """Two convolutions with group norm and SiLU; the size stays."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
            nn.SiLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, channels in, h, w) to (batch, channels, h, w)."""
        out: Tensor = self.layers(x)
        return out


class UNet(nn.Module):
    """Maps images (batch, channels, h, w) to maps of the same size; h and w need not be powers of two."""

    def __init__(self, channels: int = 1, classes: int = 2, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(DoubleConv(before, after) for before, after in zip([channels, *widths], widths))
        self.middle = DoubleConv(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for below, level in zip([2 * widths[-1], *reversed(widths)], reversed(widths)):
            self.up.append(nn.ConvTranspose2d(below, level, 2, stride=2))
            self.merge.append(DoubleConv(2 * level, level))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the score of each class at each pixel."""
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge):
            x = up(x)
            skip = skips.pop()
            if x.shape != skip.shape:
                rows, columns = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
                x = functional.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = merge(torch.cat([skip, x], dim=1))
        scores: Tensor = self.head(x)
        return scores


def example_inputs() -> tuple[Tensor]:
    """Returns images with sides that are no multiples of eight, so that the padding is used."""
    return (torch.randn(2, 1, 18, 20),)
