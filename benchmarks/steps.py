"""Measures whole training steps and inference calls of typical models, in small batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import SYSTEMS, Limit, Result, interleaved, keep_memory_mapped
from benchmarks.memory_models import perceptron
from examples.models.graph_conv import GraphNet
from examples.models.llama import Config, Llama
from examples.models.lstm import LSTMCell, LSTMModel
from examples.models.resnet import ResNet
from examples.models.transformer import Layer
from examples.models.unet import UNet
from examples.models.vision_transformer import VisionTransformer

LIMITS = (Limit("eager", 1.0), Limit("torch.compile", 1.0))
SAMPLE_SECONDS = 0.02
"""What one sample takes at least: a call that is shorter is repeated."""

Model = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    """Two graphs of 1000 nodes together, with 8000 edges."""
    return torch.randn(1000, 32), torch.randint(1000, (2, 8000)), torch.arange(1000) // 500


def _transformer() -> nn.Module:
    return nn.Sequential(*(Layer(128, 4, 0.1) for _ in range(4)), nn.Linear(128, 10))


MODELS: dict[str, Model] = {
    "residual net of 18 layers, 8 images of 32x32": (partial(ResNet, width=16), lambda: (torch.randn(8, 3, 32, 32),)),
    "transformer of 4 layers, 4 sequences of 128": (_transformer, lambda: (torch.randn(4, 128, 128),)),
    "Llama decoder of 4 layers, 2 sequences of 128": (
        partial(Llama, Config(vocabulary=512, width=128, layers=4)),
        lambda: (torch.randint(512, (2, 128)),),
    ),
    "LSTM of 2 layers, 16 sequences of 32": (
        partial(LSTMModel, vocabulary=512, width=128),
        lambda: (torch.randint(512, (16, 32)),),
    ),
    "LSTM cell over 32 steps": (partial(LSTMCell, 32, 64), lambda: (torch.randn(16, 32, 32),)),
    "MLP of 20 layers, batch 64": (perceptron, lambda: (torch.randn(64, 256),)),
    "U-Net, 2 images of 64x64": (partial(UNet, width=16), lambda: (torch.randn(2, 1, 64, 64),)),
    "vision transformer of 4 layers, 8 images of 32x32": (
        partial(VisionTransformer, 32, 4, 64, 4),
        lambda: (torch.randn(8, 3, 32, 32),),
    ),
    "graph convolution, 1000 nodes": (partial(GraphNet, 32, 64), _graph),
}


def training_step(model: nn.Module, call: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """Runs forward, loss and backward. Drops the gradients: the cost of an optimizer is the same for all."""
    made = call(*inputs)
    scores = (made[0] if isinstance(made, tuple) else made).flatten(0, -2)
    functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long)).backward()
    model.zero_grad(set_to_none=True)


def inference(model: nn.Module, call: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """A call without gradients."""
    with torch.no_grad():
        call(*inputs)


def timed(model: Model, run: Callable[..., None], *, training: bool, rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds of each system; each system has a separate model with the same parameters."""
    torch.compiler.reset()  # remembers earlier compiles of a class
    make, inputs = model
    runs: dict[str, Callable[[], None]] = {}
    for name, system in SYSTEMS.items():
        torch.manual_seed(0)
        own = make().train(training)
        runs[name] = partial(run, own, system(own), inputs())
    runs["eager"]()
    start = time.perf_counter()
    runs["eager"]()
    calls = max(1, int(SAMPLE_SECONDS / (time.perf_counter() - start)))
    return interleaved(runs, rounds=rounds, calls=calls, scale=1e3)


def measure(quick: bool) -> Iterator[Result]:
    """Yields a row for the training step and a row for the inference call of each model."""
    keep_memory_mapped()
    for (name, model), training in itertools.product(MODELS.items(), (True, False)):
        samples = timed(model, training_step if training else inference, training=training, rounds=9 if quick else 60)
        yield Result(f"{'step' if training else 'inference'}: {name}", "ms", samples, LIMITS)
