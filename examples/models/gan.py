"""A generative adversarial network: the losses of both players for one batch of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm


class Generator(nn.Module):
    """Maps codes (batch, code) to images (batch, 1, 8, 8)."""

    def __init__(self, code: int, width: int) -> None:
        super().__init__()
        self.code = code
        self.layers = nn.Sequential(
            nn.Unflatten(1, (code, 1, 1)),
            nn.ConvTranspose2d(code, 2 * width, 4, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, 1, 4, stride=2, padding=1, bias=False),
            nn.Tanh(),
        )

    def forward(self, codes: Tensor) -> Tensor:
        """Returns an image for each code."""
        images: Tensor = self.layers(codes)
        return images


class Discriminator(nn.Module):
    """Maps images (batch, 1, 8, 8) to scores of realism (batch)."""

    def __init__(self, width: int, *, spectral: bool = False) -> None:
        super().__init__()
        last = nn.Linear(2 * width * 4, 1)
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Flatten(),
            spectral_norm(last) if spectral else last,
        )

    def forward(self, images: Tensor) -> Tensor:
        """A score for each image."""
        scores: Tensor = self.layers(images).squeeze(1)
        return scores


class GAN(nn.Module):
    """Maps real images (batch, 1, 8, 8) to the losses of the discriminator and of the generator."""

    def __init__(self, code: int = 6, width: int = 8, *, spectral: bool = False) -> None:
        super().__init__()
        self.generator = Generator(code, width)
        self.discriminator = Discriminator(width, spectral=spectral)

    def forward(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Returns both losses; the discriminator's loss does not reach the generator."""
        fake = self.generator(torch.randn(len(real), self.generator.code, device=real.device))
        return self.discriminator_loss(real, fake.detach()), self.generator_loss(fake)

    def discriminator_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        """Computes a loss that is low for high scores of real images and low scores of generated images."""
        scores = self.discriminator(torch.cat([real, fake]))
        wanted = torch.cat([torch.ones(len(real)), torch.zeros(len(fake))])
        return functional.binary_cross_entropy_with_logits(scores, wanted)

    def generator_loss(self, fake: Tensor) -> Tensor:
        """Computes a loss that is low for high scores of generated images."""
        return functional.softplus(-self.discriminator(fake)).mean()


def example_inputs() -> tuple[Tensor]:
    """A batch of small images."""
    return (torch.rand(3, 1, 8, 8) * 2 - 1,)
