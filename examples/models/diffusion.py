"""A training step of a diffusion model: noises an image, and predicts the noise with a network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class TimeEmbedding(nn.Module):
    """Maps time steps (batch) to vectors (batch, width): sines and cosines, then a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, time: Tensor) -> Tensor:
        """Returns a vector for each step."""
        half = self.width // 2
        frequency = torch.exp(-math.log(10000) * torch.arange(half, device=time.device) / (half - 1))
        angles = time[:, None] * frequency[None, :]
        out: Tensor = self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return out


class Block(nn.Module):
    """A residual block whose features are scaled and shifted by the time."""

    def __init__(self, channels: int, time_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.modulation = nn.Linear(time_width, 2 * channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Maps (batch, channels, h, w) to the same shape."""
        scale, shift = self.modulation(functional.silu(time))[..., None, None].chunk(2, dim=1)
        hidden = self.conv1(functional.silu(self.norm(x)))
        hidden = hidden * (1 + scale) + shift
        out: Tensor = x + self.conv2(functional.silu(hidden))
        return out


class Denoiser(nn.Module):
    """Maps noisy images (batch, channels, h, w) and time steps (batch) to the noise."""

    def __init__(self, channels: int = 1, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.time = TimeEmbedding(2 * width)
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width, 2 * width) for _ in range(blocks))
        self.leave = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The noise."""
        embedded = self.time(time)
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, embedded)
        out: Tensor = self.leave(x)
        return out


class Diffusion(nn.Module):
    """Maps images (batch, channels, h, w) to the loss of one training step, at a random time for each image."""

    alphas: Tensor

    def __init__(self, denoiser: nn.Module | None = None, steps: int = 100) -> None:
        super().__init__()
        self.denoiser = denoiser if denoiser is not None else Denoiser()
        self.steps = steps
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), dim=0))

    def add_noise(self, images: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        """Returns the images after `time` steps of the noising process."""
        kept = self.alphas[time].reshape(-1, *[1] * (images.dim() - 1))
        return kept.sqrt() * images + (1 - kept).sqrt() * noise

    def forward(self, images: Tensor) -> Tensor:
        """Returns the mean square error of the predicted noise."""
        time = torch.randint(0, self.steps, (images.shape[0],), device=images.device).long()
        noise = torch.randn_like(images)
        predicted = self.denoiser(self.add_noise(images, noise, time), time)
        return functional.mse_loss(predicted, noise)


def example_inputs() -> tuple[Tensor]:
    """A batch of small images."""
    return (torch.rand(2, 1, 8, 8),)
