"""Owns the models whose peak memory in training is compared with eager's: architectures of torchvision, timm,
transformers and examples/models, with fewer layers where the original has many equal layers.

Measures nothing. Weights are random and nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.library_programs import Program
from benchmarks.library_worker import INPUTS, Step
from benchmarks.library_worker import make as make_of_library
from benchmarks.vision_operators import import_torchvision
from examples.models import lstm, mixture_of_experts, unet

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Model:
    """Makes a module, and the named arguments of a call with a number of samples."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]


def _vision_model(name: str, module: str = "torchvision.models", **settings: Any) -> nn.Module:
    """Returns a model of torchvision or timm, by the path of its class or function."""
    import_torchvision()
    found: nn.Module = getattr(importlib.import_module(module), name)(**settings)
    return found


def _features(name: str) -> nn.Module:
    """Returns the convolutions of a model of torchvision."""
    features: Any = _vision_model(name).features
    assert isinstance(features, nn.Module)
    return features


class _Detector(nn.Module):
    """The convolutions of a detector: a residual net, a feature pyramid, and the heads for classes and boxes."""

    def __init__(self) -> None:
        super().__init__()
        net: Any = _vision_model("resnet18")
        self.stem = nn.Sequential(*list(net.children())[:5])
        self.stages = nn.ModuleList([net.layer2, net.layer3, net.layer4])
        self.pyramid = _vision_model(
            "FeaturePyramidNetwork", "torchvision.ops", in_channels_list=[128, 256, 512], out_channels=64
        )
        self.head = _vision_model(
            "RetinaNetHead", "torchvision.models.detection.retinanet", in_channels=64, num_anchors=9, num_classes=10
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Maps images to the logits of classes and the offsets of boxes, for each anchor."""
        x, levels = self.stem(x), {}
        for number, stage in enumerate(self.stages):
            x = stage(x)
            levels[str(number)] = x
        found: dict[str, Tensor] = self.head(list(self.pyramid(levels).values()))
        return found


def _images(size: int, name: str = "x") -> Callable[[int], Inputs]:
    return lambda batch: {name: torch.randn(batch, 3, size, size)}


def _vision(
    name: str, size: int = 64, module: str = "torchvision.models", argument: str = "x", **settings: Any
) -> Model:
    return Model(partial(_vision_model, name, module, **settings), _images(size, argument))


def _timm(name: str, size: int = 64, **settings: Any) -> Model:
    return Model(partial(make_of_library, Program(name, "", settings)), _images(size))


def _text(family: str, head: str, settings: Mapping[str, Any], inputs: str = "language") -> Model:
    """Returns a language model of transformers, with 64 tokens a sample."""
    program = Program(f"{family}{head}", f"{family}Config", settings)
    return Model(partial(make_of_library, program), lambda batch: INPUTS[inputs](Step(batch, 64, training=True)))


LAYERS: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
ENCODER: dict[str, Any] = dict(LAYERS, vocab_size=1000, max_position_embeddings=128)
DECODER: dict[str, Any] = dict(ENCODER, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GPT2: dict[str, Any] = {
    "vocab_size": 1000,
    "n_embd": 128,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 1000,
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 512,
    "num_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
VIT: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 8,
    "num_layers": 4,
    "num_heads": 4,
    "hidden_dim": 128,
    "mlp_dim": 512,
}
SWIN: dict[str, Any] = {
    "patch_size": [4, 4],
    "embed_dim": 32,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": [4, 4],
}
MAXVIT: dict[str, Any] = {
    "input_size": (64, 64),
    "stem_channels": 32,
    "partition_size": 4,
    "block_channels": [32, 64],
    "block_layers": [1, 1],
    "head_dim": 16,
    "stochastic_depth_prob": 0.0,
}
MIXER: dict[str, Any] = {"img_size": 64, "patch_size": 8, "num_blocks": 4, "embed_dim": 128, "num_classes": 10}
CONVNEXT: dict[str, Any] = {"depths": [1, 1, 3, 1], "dims": [48, 96, 192, 384]}

CONV_NETS = {
    "ResNet-18": _vision("resnet18"),
    "ResNet of bottlenecks": _timm("resnet50", layers=(1, 1, 1, 1)),
    "VGG-11 without its classifier": Model(lambda: _features("vgg11_bn"), _images(64, "input")),
    "SqueezeNet": _vision("squeezenet1_1"),
    "Inception v3": _vision("inception_v3", 96, aux_logits=False, init_weights=False),
    "DenseNet": _vision("DenseNet", block_config=(4, 6, 8, 4)),
    "MobileNet v2": _vision("mobilenet_v2"),
    "MobileNet v3": _vision("mobilenet_v3_small"),
    "EfficientNet-B0": _vision("efficientnet_b0"),
    "RegNet-Y": _vision("regnet_y_400mf"),
    "ShuffleNet v2": _vision("shufflenet_v2_x0_5"),
    "GhostNet": _timm("ghostnet_050"),
    "ConvNeXt": _timm("convnext_tiny", **CONVNEXT),
    "U-Net": Model(partial(unet.UNet, channels=3, width=16), _images(64)),
    "feature pyramid and RetinaNet heads": Model(_Detector, _images(64)),
}
VISION_TRANSFORMERS = {
    "ViT": _vision("VisionTransformer", **VIT),
    "Swin": _vision("SwinTransformer", **SWIN),
    "MaxViT": _vision("MaxVit", module="torchvision.models.maxvit", **MAXVIT),
    "MLP-Mixer": _vision("MlpMixer", module="timm.models.mlp_mixer", **MIXER),
}
SEQUENCES = {
    "BERT": _text("Bert", "ForSequenceClassification", ENCODER, "classes"),
    "GPT-2": _text("GPT2", "LMHeadModel", GPT2),
    "Llama": _text("Llama", "ForCausalLM", DECODER),
    "T5": _text("T5", "ForConditionalGeneration", T5, "sequences"),
    "Mixtral": _text("Mixtral", "ForCausalLM", dict(DECODER, num_hidden_layers=2, num_local_experts=4)),
    "mixture of experts": Model(
        partial(mixture_of_experts.MixtureOfExperts, 128, 4), lambda batch: {"x": torch.randn(batch, 64, 128)}
    ),
    "LSTM": Model(partial(lstm.LSTMModel, 1000, 128), lambda batch: {"tokens": torch.randint(1000, (batch, 64))}),
    "LSTM cell": Model(partial(lstm.LSTMCell, 64, 128), lambda batch: {"x": torch.randn(batch, 32, 64)}),
}
MODELS: dict[str, Model] = {**CONV_NETS, **VISION_TRANSFORMERS, **SEQUENCES}
