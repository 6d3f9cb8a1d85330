"""A variational auto-encoder for flat images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Reconstruction(NamedTuple):
    """The output of the auto-encoder: the image, and the distribution of its code."""

    image: Tensor
    mean: Tensor
    log_variance: Tensor


class VAE(nn.Module):
    """Maps images (batch, pixels) with values from 0 to 1 to the loss, the mean over the batch."""

    def __init__(self, pixels: int = 64, hidden: int = 32, code: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU())
        self.to_mean = nn.Linear(hidden, code)
        self.to_log_variance = nn.Linear(hidden, code)
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Sigmoid())

    def sample(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Returns a code from the distribution while training, its mean otherwise."""
        if not self.training:
            return mean
        deviation = torch.exp(0.5 * log_variance)
        return mean + torch.randn_like(deviation) * deviation

    def reconstruct(self, images: Tensor) -> Reconstruction:
        """Decodes the code of each image into an image."""
        hidden = self.encoder(images)
        mean, log_variance = self.to_mean(hidden), self.to_log_variance(hidden)
        return Reconstruction(self.decoder(self.sample(mean, log_variance)), mean, log_variance)

    def forward(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its parts."""
        found = self.reconstruct(images)
        error = functional.binary_cross_entropy(found.image, images, reduction="sum")
        divergence = -0.5 * torch.sum(1 + found.log_variance - found.mean.pow(2) - found.log_variance.exp())
        parts = {"error": error / len(images), "divergence": divergence / len(images)}
        return torch.stack(list(parts.values())).sum(), {name: part.detach() for name, part in parts.items()}


def example_inputs() -> tuple[Tensor]:
    """A batch of flat images."""
    return (torch.rand(3, 64),)
