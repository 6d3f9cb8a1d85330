"""The modules of torch.nn in a compiled call: outputs, gradients, buffers, and the number of graphs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from minidynamo.testing import assert_same_as_eager


class Case(NamedTuple):
    """Adds a module, its inputs (shapes of random tensors, or functions), and the graphs and breaks of a call."""

    make: Any
    inputs: tuple[Any, ...]
    graphs: int = 1
    breaks: int = 0


def call(module, *args):
    return module(*args)


def classes(*shape):
    return lambda: torch.randint(0, 4, shape)


def probabilities(*shape):
    return lambda: torch.rand(*shape)


VECTORS = ((2, 4),)
CASES: dict[str, Case] = {}


def add(make, *inputs, name="", **expected):
    CASES[name or make().__class__.__name__] = Case(make, inputs, **expected)


ACTIVATIONS = [
    *("ReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "LeakyReLU", "LogSigmoid", "Hardshrink", "Hardsigmoid"),
    *("Hardswish", "Hardtanh", "Mish", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink"),
    *("PReLU", "RReLU", "Dropout", "AlphaDropout", "FeatureAlphaDropout", "GLU"),
]
for _name in ACTIVATIONS:
    add(getattr(nn, _name), *VECTORS)
for _name in ("Softmax", "Softmin", "LogSoftmax"):
    add(lambda _name=_name: getattr(nn, _name)(dim=1), *VECTORS)
add(nn.Flatten, (2, 4, 3))
add(nn.Identity, (2, 4), graphs=0)
add(lambda: nn.Threshold(0.1, 2.0), *VECTORS)
add(nn.Softmax2d, (1, 2, 3, 3))
add(lambda: nn.Linear(4, 3), *VECTORS)
add(lambda: nn.Bilinear(4, 3, 2), (2, 4), (2, 3))

for _d in (1, 2, 3):
    _shape = (2, 4, *[6] * _d)
    _made = {
        "Conv{}d": lambda cls: cls(4, 6, 3, padding=1, stride=2, groups=2),
        "ConvTranspose{}d": lambda cls: cls(4, 2, 3, stride=2, output_padding=1),
        "MaxPool{}d": lambda cls: cls(2),
        "AvgPool{}d": lambda cls: cls(2),
        "LPPool{}d": lambda cls: cls(2, 2),
        "AdaptiveAvgPool{}d": lambda cls: cls(3),
        "AdaptiveMaxPool{}d": lambda cls: cls(3),
        "BatchNorm{}d": lambda cls: cls(4),
        "InstanceNorm{}d": lambda cls: cls(4, affine=True, track_running_stats=True),
        "Dropout{}d": lambda cls: cls(0.5),
        "ConstantPad{}d": lambda cls: cls(1, 2.0),
        "ReflectionPad{}d": lambda cls: cls(1),
        "ReplicationPad{}d": lambda cls: cls(1),
        "CircularPad{}d": lambda cls: cls(1),
    }
    for _pattern, _make in _made.items():
        add(functools.partial(_make, getattr(nn, _pattern.format(_d))), _shape)
add(lambda: nn.Conv2d(4, 2, 3, padding="same", padding_mode="reflect"), (1, 4, 5, 5), name="Conv2d reflect")
add(lambda: nn.MaxPool2d(2, return_indices=True), (1, 4, 4, 4), name="MaxPool2d indices")
add(lambda: nn.BatchNorm2d(4, momentum=None), (2, 4, 3, 3), name="BatchNorm2d cumulative")
add(lambda: nn.SyncBatchNorm(4), (2, 4, 3))
add(lambda: nn.FractionalMaxPool2d(2, output_size=3), (1, 2, 8, 8))
add(lambda: nn.Fold((4, 5), (2, 2)), (2, 12, 12))
add(lambda: nn.Unfold((2, 3)), (2, 5, 3, 4))
add(lambda: nn.Unflatten(1, (2, 2)), *VECTORS)
add(lambda: nn.PixelShuffle(2), (1, 4, 3, 3))
add(lambda: nn.PixelUnshuffle(2), (1, 1, 4, 4))
add(lambda: nn.ChannelShuffle(2), (1, 4, 3, 3))
add(lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (1, 2, 3, 3))
add(lambda: nn.UpsamplingNearest2d(scale_factor=2), (1, 2, 3, 3))
add(lambda: nn.LayerNorm(4), *VECTORS)
add(lambda: nn.RMSNorm(4), *VECTORS)
add(lambda: nn.GroupNorm(2, 4), (2, 4, 3))
add(lambda: nn.LocalResponseNorm(2), (2, 4, 3))
add(lambda: nn.Embedding(10, 3, padding_idx=0), lambda: torch.tensor([[1, 2], [3, 0]]))
add(lambda: nn.EmbeddingBag(10, 3), lambda: torch.tensor([[1, 2], [3, 0]]))
add(nn.CosineSimilarity, (2, 4), (2, 4))
add(nn.PairwiseDistance, (2, 4), (2, 4))

LOSSES = [
    *("L1Loss", "MSELoss", "HuberLoss", "SmoothL1Loss", "BCEWithLogitsLoss", "SoftMarginLoss", "KLDivLoss"),
    "PoissonNLLLoss",
]
for _name in LOSSES:
    add(getattr(nn, _name), (2, 4), probabilities(2, 4))
add(nn.BCELoss, probabilities(2, 4), probabilities(2, 4))
add(nn.MultiLabelSoftMarginLoss, (2, 4), probabilities(2, 4))
for _name in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"):
    add(getattr(nn, _name), (2, 4), classes(2))
add(
    lambda: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1), (2, 4), classes(2), name="smooth CrossEntropyLoss"
)
add(nn.MarginRankingLoss, (4,), (4,), lambda: torch.ones(4))
add(nn.HingeEmbeddingLoss, (4,), lambda: torch.ones(4))
add(nn.CosineEmbeddingLoss, (2, 4), (2, 4), lambda: torch.ones(2))
add(nn.TripletMarginLoss, (2, 4), (2, 4), (2, 4))
add(nn.TripletMarginWithDistanceLoss, (2, 4), (2, 4), (2, 4))
add(nn.GaussianNLLLoss, (2, 4), (2, 4), probabilities(2, 4))


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class WithoutGradients(nn.Module):
    """Evaluation has other paths through attention without gradients."""

    def __init__(self, module):
        super().__init__()
        self.module = module.eval()

    def forward(self, *args, **kwargs):
        with torch.no_grad():
            return self.module(*args, **kwargs)


class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, mask):
        return self.encoder(x, src_key_padding_mask=mask)


def encoder(**options):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options), 2)


SEQUENCES = ((2, 3, 8),)
add(lambda: nn.MultiheadAttention(8, 2), (3, 2, 8), (3, 2, 8), (3, 2, 8))
add(lambda: SelfAttention(dropout=0.1), *SEQUENCES, name="attention")
add(lambda: WithoutGradients(SelfAttention()), *SEQUENCES, name="attention in evaluation")
add(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), *SEQUENCES)
add(encoder, *SEQUENCES)
add(lambda: encoder().eval(), *SEQUENCES, name="TransformerEncoder.eval")
add(lambda: WithoutGradients(encoder(activation="gelu")), *SEQUENCES, name="TransformerEncoder without gradients")
add(lambda: nn.TransformerDecoderLayer(8, 2, 16), (3, 2, 8), (4, 2, 8))
add(lambda: nn.Transformer(8, 2, 1, 1, 16), (3, 2, 8), (4, 2, 8), name="Transformer")
PADDING = lambda: torch.tensor([[False, False, True], [False, False, False]])
add(PaddedEncoder, *SEQUENCES, PADDING, name="padded encoder")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_same_as_eager(case):
    def make_inputs():
        module = case.make()
        tensors = [value() if callable(value) else torch.randn(*value) for value in case.inputs]
        if tensors[0].is_floating_point():
            tensors[0].requires_grad_()
        return (module, *tensors)

    assert_same_as_eager(call, make_inputs, graphs=case.graphs, breaks=case.breaks, calls=2)


@pytest.mark.filterwarnings("ignore")
def test_padded_encoder_without_gradients_gives_what_eager_gives():
    # Eager fills padding with zeros here; torch.compile does not.
    assert_same_as_eager(call, lambda: (WithoutGradients(PaddedEncoder()), torch.randn(2, 3, 8), PADDING()))
