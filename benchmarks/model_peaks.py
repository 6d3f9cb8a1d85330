"""Owns the comparison of the peak memory of models in training with eager's.

`peak_models.py` has the models; `python -m benchmarks peaks` prints the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import minidynamo
from benchmarks.library_worker import tensors_in
from benchmarks.memory import peak_bytes
from benchmarks.peak_models import MODELS, Model
from minidynamo.observe.comparison import seed_generators

#: The largest accepted peak of a model, and the largest accepted geometric mean of a backend's peaks, of eager's.
LIMIT, MEAN_LIMIT = 1.0, 0.85
BATCHES = (2, 16)
#: A name of the option `--backend` that measures torch's own compiler; no limit applies.
TORCH = "torch.compile"


@dataclass(frozen=True)
class ModelPeak:
    """The peak bytes of a training step of a model: eager, and with each backend."""

    name: str
    batch: int
    eager: int
    #: The peak by the name of the backend.
    compiled: Mapping[str, int]

    def share(self, backend: str) -> float:
        """Returns the peak of a backend as a share of eager's."""
        return self.compiled[backend] / self.eager


def measure(name: str, batch: int, backends: Sequence[str], model: Model | None = None) -> ModelPeak:
    """Measures the step of a model with each backend."""
    chosen = MODELS[name] if model is None else model
    compiled = {backend: _peak(chosen, batch, backend) for backend in backends}
    return ModelPeak(name, batch, _peak(chosen, batch, None), compiled)


def _peak(model: Model, batch: int, backend: str | None) -> int:
    """Returns the peak of the third step: the first step compiles, the second allocates persistent state."""
    seed_generators(0)
    module, inputs = model.make().train(), model.inputs(batch)
    call: Callable[..., Any] = module
    if backend is not None:
        call = torch.compile(module) if backend == TORCH else minidynamo.compile(module, backend=backend)

    def step() -> None:
        loss_of(call(**inputs)).backward()
        module.zero_grad(set_to_none=True)

    try:
        for _ in range(2):
            step()
        return peak_bytes(step)
    finally:
        minidynamo.reset()
        if backend == TORCH:
            torch.compiler.reset()


def loss_of(output: Any) -> Tensor:
    """Returns the model's own loss; without a loss, a mean of squares of its results, which only autograd keeps."""
    if getattr(output, "loss", None) is not None:
        own: Tensor = output.loss
        return own
    losses = [tensor.square().mean() for tensor in tensors_in(output) if tensor.requires_grad]
    return torch.stack(losses).sum()


def row(peak: ModelPeak) -> list[str]:
    """Returns the cells of a model."""
    bytes = [peak.eager, *peak.compiled.values()]
    shares = [f"{peak.share(backend):.2f}" for backend in peak.compiled]
    return [peak.name, str(peak.batch), *(f"{size / 2**20:.1f}" for size in bytes), *shares]


def mean(peaks: Sequence[ModelPeak], backend: str) -> float:
    """Returns the geometric mean of the shares of a backend."""
    return statistics.geometric_mean(peak.share(backend) for peak in peaks)


def misses(peaks: Sequence[ModelPeak]) -> list[str]:
    """Returns a line for each limit that is exceeded. A mean counts only over all models."""
    lines = [
        f"{peak.name}, batch {peak.batch}, {backend}: {size:,} bytes, eager {peak.eager:,}"
        for peak in peaks
        for backend, size in peak.compiled.items()
        if backend != TORCH and peak.share(backend) > LIMIT
    ]
    if {peak.name for peak in peaks} == set(MODELS):
        means = {backend: mean(peaks, backend) for backend in peaks[0].compiled if backend != TORCH}
        lines += [
            f"geometric mean, {backend}: {found:.3f} of eager's, the limit is {MEAN_LIMIT}"
            for backend, found in means.items()
            if found > MEAN_LIMIT
        ]
    return lines
