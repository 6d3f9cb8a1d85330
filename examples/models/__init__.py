"""Small models in the style of users: trained by the examples, compared by the tests, measured by the benchmarks.

Every file has one architecture and `example_inputs()`, which returns the arguments of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from examples.models import (
    conv_net,
    diffusion,
    gan,
    graph_conv,
    llama,
    lstm,
    mixture_of_experts,
    post_norm,
    resnet,
    t5,
    transformer,
    unet,
    vae,
    vision_transformer,
)
from examples.models.conv_net import ConvNet
from examples.models.transformer import Transformer

__all__ = ["ARCHITECTURES", "Architecture", "ConvNet", "Transformer"]


@dataclass(frozen=True)
class Architecture:
    """Makes a model and the arguments of one call; `data_dependent` names the data-dependent choice of the model, if
    any."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    data_dependent: str = ""


ARCHITECTURES: dict[str, Architecture] = {
    "conv net": Architecture(ConvNet, conv_net.example_inputs),
    "residual net": Architecture(resnet.ResNet, resnet.example_inputs),
    "U-Net": Architecture(unet.UNet, unet.example_inputs),
    "pre-norm transformer": Architecture(Transformer, transformer.example_inputs),
    "post-norm transformer": Architecture(post_norm.PostNormTransformer, post_norm.example_inputs),
    "vision transformer": Architecture(vision_transformer.VisionTransformer, vision_transformer.example_inputs),
    "Llama decoder": Architecture(llama.Llama, llama.example_inputs),
    "Llama decoder with KV cache": Architecture(llama.Llama, llama.cached_inputs),
    "T5 encoder": Architecture(t5.T5Encoder, t5.example_inputs),
    "mixture of experts": Architecture(mixture_of_experts.MixtureOfExperts, mixture_of_experts.example_inputs),
    "sparse mixture of experts": Architecture(
        partial(mixture_of_experts.MixtureOfExperts, sparse=True),
        mixture_of_experts.example_inputs,
        "how many tokens an expert gets",
    ),
    "LSTM": Architecture(lstm.LSTMModel, lstm.example_inputs),
    "LSTM cell": Architecture(lstm.LSTMCell, lstm.cell_inputs),
    "variational auto-encoder": Architecture(vae.VAE, vae.example_inputs),
    "diffusion step": Architecture(diffusion.Diffusion, diffusion.example_inputs),
    "generative adversarial step": Architecture(gan.GAN, gan.example_inputs),
    "graph convolution": Architecture(graph_conv.GraphNet, graph_conv.example_inputs),
}
