"""Small models that the examples train and the benchmarks measure."""

from examples.models.conv_net import ConvNet
from examples.models.transformer import Transformer

__all__ = ["ConvNet", "Transformer"]
