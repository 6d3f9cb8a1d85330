"""Measures the peak memory of training steps and of inference, and compares the peaks with the predictions.

`minidynamo.memory_timeline` counts every allocation and release of torch's allocators through the profiler, whoever the
caller, so that buffers of generated code count like those of eager operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

import minidynamo
from benchmarks.measure import SYSTEMS, Limit, Result
from benchmarks.memory_models import ACCUMULATED, MODELS, POINTWISE
from minidynamo.observe.memory_timeline import record_memory

LIMITS: tuple[Limit, ...] = (Limit("eager", 1.0), Limit("torch.compile", 1.0))
INFERENCE: tuple[Limit, ...] = (Limit("eager", 0.8),)
PREDICTED: tuple[Limit, ...] = (Limit("eager", 1.02),)


def peak_bytes(function: Callable[[], object]) -> int:
    """Returns the most bytes that `function` allocates and holds at a time. Releasing older memory gives no credit."""
    return record_memory(function).peak


def accumulation(call: Callable[..., Tensor], x: Tensor, model: nn.Module) -> None:
    """Runs forward, loss and backward; the gradients are added to the gradients of earlier runs."""
    scores = call(x).flatten(0, -2)
    loss = functional.cross_entropy(scores, scores.new_zeros(scores.shape[0], dtype=torch.long))
    del scores
    loss.backward()


def training_step(call: Callable[..., Tensor], x: Tensor, model: nn.Module) -> None:
    """Runs forward, loss and backward; drops the gradients, so that every step starts with the same memory."""
    accumulation(call, x, model)
    model.zero_grad(set_to_none=True)


def saliency(call: Callable[..., Tensor], x: Tensor, model: nn.Module) -> None:
    """Computes the gradient by the batch alone."""
    x.requires_grad_()
    torch.autograd.grad(call(x).square().mean(), x)


def inference(call: Callable[..., Tensor], x: Tensor, model: nn.Module) -> None:
    """A call without gradients."""
    with torch.no_grad():
        call(x)


def measured(
    make: Callable[[], nn.Module], shape: tuple[int, ...], run: Callable[..., None]
) -> tuple[dict[str, list[float]], float]:
    """Returns the mebibytes of a run after the first two, which compile and allocate persistent state; and minidynamo's
    prediction."""
    samples: dict[str, list[float]] = {}
    predicted = 0.0
    for name, system in SYSTEMS.items():
        torch.manual_seed(0)
        model, x = make(), torch.rand(shape)
        one_run = partial(run, system(model), x, model)
        for _ in range(2):
            one_run()
        samples[name] = [peak_bytes(one_run) / 2**20]
        if name == "minidynamo":
            plan = minidynamo.memory_plan(model)
            predicted = (plan.accumulating_peak if run is accumulation else plan.peak) / 2**20
    return samples, predicted


def measure(quick: bool) -> Iterator[Result]:
    """Measures peaks of training steps and of inference, and the accuracy of their predictions."""
    jobs = [(f"peak memory of a step: {n}", *job, training_step, LIMITS) for n, job in MODELS.items()]
    jobs += [(f"peak memory of a micro-batch: {n}", *job, accumulation, LIMITS) for n, job in ACCUMULATED.items()]
    jobs += [(f"peak memory of a gradient by x: {n}", *job, saliency, LIMITS) for n, job in ACCUMULATED.items()]
    jobs += [(f"peak memory of inference: {n}", *job, inference, INFERENCE) for n, job in POINTWISE.items()]
    for name, make, shape, run, limits in jobs:
        samples, predicted = measured(make, shape, run)
        yield Result(name, "MiB", samples, limits)
        # The measured peak stands in eager's column: the ratio is the predicted share of the peak.
        known = {"eager": samples["minidynamo"], "minidynamo": [predicted]}
        yield Result(f"predicted {name.removeprefix('peak ')}, of the measured", "MiB", known, PREDICTED)
