"""Measures kernels, whole steps, host time and peak memory on a GPU: `python -m benchmarks.gpu [NAME ...]`.

Samples are taken with the device's own clock, with the systems of a row interleaved. Next to the ratios is the share of
the bound: the time of a copy of as many bytes as the kernel has to move, over the kernel's time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.kernels import chain, gelu_bias, softmax
from benchmarks.measure import SYSTEMS, Limit, Result
from benchmarks.memory import training_step
from benchmarks.tables import chosen, show, wide_console
from examples.memory_figure import residual_net
from examples.models.llama import Config, Llama
from examples.models.transformer import Layer
from examples.models.vision_transformer import VisionTransformer

LIMITS = (Limit("eager", 1.0), Limit("torch.compile", 1.0))
COLUMNS = ("", "unit", *SYSTEMS, "of eager", "of torch.compile", "of the bound")
ROWS, WIDTH = 16384, 4096
"""A float32 matrix of 268 MB: several times what the caches of a GPU hold."""

SAMPLE = 8.0
"""Milliseconds of one sample."""


@dataclass(frozen=True)
class Kernel:
    """A function, its inputs, and the bytes that it has to move. `trained`: forward and backward are measured."""

    function: Callable[..., Tensor]
    inputs: Callable[[], tuple[Tensor, ...]]
    bytes: int
    trained: bool = False


def _matrix(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(ROWS, WIDTH, device="cuda", dtype=dtype)


def _row() -> Tensor:
    return torch.randn(WIDTH, device="cuda")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm over each row."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root mean square norm over each row, in float32 and back, in the form of language models."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight.to(x.dtype)


def dropped(x: Tensor, residual: Tensor) -> Tensor:
    """The end of a transformer block during training."""
    return functional.dropout(x, 0.1) + residual


def total(x: Tensor) -> Tensor:
    """Sums all elements."""
    return x.square().sum()


def columns(x: Tensor) -> Tensor:
    """The mean of each column."""
    return x.mean(0)


def loss(x: Tensor, target: Tensor) -> Tensor:
    """The loss of a classifier."""
    return functional.cross_entropy(x, target)


SIZE = ROWS * WIDTH * 4
KERNELS: dict[str, Kernel] = {
    "tanh(x) * sigmoid(y) + exp(-x * x)": Kernel(chain, lambda: (_matrix(), _matrix()), 3 * SIZE),
    "gelu(x + bias)": Kernel(gelu_bias, lambda: (_matrix(), _row()), 2 * SIZE),
    "softmax": Kernel(softmax, lambda: (_matrix(),), 2 * SIZE),
    "layer norm": Kernel(layer_norm, lambda: (_matrix(), _row(), _row()), 2 * SIZE),
    "RMS norm, bfloat16": Kernel(rms_norm, lambda: (_matrix(torch.bfloat16), _row()), SIZE),
    "sum of all squares": Kernel(total, lambda: (_matrix(),), SIZE),
    "mean of each column": Kernel(columns, lambda: (_matrix(),), SIZE),
    "dropout(x) + residual": Kernel(dropped, lambda: (_matrix(), _matrix()), 3 * SIZE),
    # Forward reads x and writes the result; backward reads x and the gradient and writes a gradient.
    "gelu(x + bias), forward and backward": Kernel(gelu_bias, lambda: (_matrix(), _row()), 5 * SIZE, True),
    "softmax, forward and backward": Kernel(softmax, lambda: (_matrix(),), 5 * SIZE, True),
    "layer norm, forward and backward": Kernel(layer_norm, lambda: (_matrix(), _row(), _row()), 5 * SIZE, True),
    # Forward reads x, backward reads x again and writes the gradient.
    "cross entropy, forward and backward": Kernel(
        loss, lambda: (_matrix(), torch.randint(WIDTH, (ROWS,), device="cuda")), 3 * SIZE, True
    ),
}


def _transformer() -> nn.Module:
    return nn.Sequential(*(Layer(512, 8, 0.1) for _ in range(6)), nn.Linear(512, 10))


def _vision() -> nn.Module:
    return VisionTransformer(64, 8, 256, 6)


def _perceptron() -> nn.Module:
    layers = [layer for _ in range(19) for layer in (nn.Linear(1024, 1024), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def _llama() -> nn.Module:
    return Llama(Config(vocabulary=8192, width=512, heads=8, kv_heads=4, layers=6, longest=512))


Model = tuple[Callable[[], nn.Module], Callable[[], Tensor]]
STEPS: dict[str, Model] = {
    "transformer of 6 layers, 32 sequences of 256": (_transformer, lambda: torch.randn(32, 256, 512)),
    "Llama decoder of 6 layers, 8 sequences of 512": (_llama, lambda: torch.randint(8192, (8, 512))),
    "vision transformer of 6 layers, 64 images of 64x64": (_vision, lambda: torch.randn(64, 3, 64, 64)),
    "residual net of 18 layers, 64 images of 112x112": (residual_net, lambda: torch.randn(64, 3, 112, 112)),
    "MLP of 20 layers, batch 4096": (_perceptron, lambda: torch.randn(4096, 1024)),
}


def milliseconds(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Returns the device time of a call of each function, in `rounds` interleaved samples. A sample has enough calls to
    fill SAMPLE milliseconds, so that host time before the first call does not count."""
    for function in functions.values():
        for _ in range(3):
            function()
    calls = max(1, int(SAMPLE / min(_elapsed(function, 1) for function in functions.values())))
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            samples[name].append(_elapsed(function, calls))
    return samples


def _elapsed(function: Callable[[], object], calls: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / calls


def copy_rate(rounds: int) -> float:
    """Returns the bytes that a copy on the device moves per millisecond, reads and writes together."""
    x, out = _matrix(), _matrix()
    samples = milliseconds({"copy": lambda: out.copy_(x)}, rounds)["copy"]
    return 2 * SIZE / statistics.median(samples)


def _run(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], given: Tensor | None) -> None:
    result = function(*inputs)
    if given is not None:
        wanted = [x for x in inputs if x.requires_grad]
        torch.autograd.grad(result, wanted, given if result.dim() else None)


def measure_kernels(rounds: int) -> Iterator[tuple[Result, str]]:
    """Measures the milliseconds of generated kernels, with their share of the bound."""
    rate = copy_rate(rounds)
    for name, kernel in KERNELS.items():
        inputs = kernel.inputs()
        given = None
        if kernel.trained:
            inputs = tuple(x.requires_grad_(x.is_floating_point()) for x in inputs)
            given = _matrix()
        functions = {n: partial(_run, system(kernel.function), inputs, given) for n, system in SYSTEMS.items()}
        result = Result(name, "ms", milliseconds(functions, rounds), LIMITS)
        yield result, f"{kernel.bytes / rate / result.median('minidynamo'):.2f}"


def _models(model: Model) -> Iterator[tuple[str, nn.Module, Callable[..., Any], Tensor]]:
    make, batch = model
    for name, system in SYSTEMS.items():
        torch.manual_seed(0)
        own = make().cuda().train()
        yield name, own, system(own), batch().cuda()


def measure_steps(rounds: int) -> Iterator[tuple[Result, str]]:
    """Measures the milliseconds of training steps under autocast to bfloat16, forward, loss and backward."""

    def step(model: nn.Module, call: Callable[..., Any], x: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            made = call(x)
            scores = (made[0] if isinstance(made, tuple) else made).flatten(0, -2)
            loss = functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))
        loss.backward()
        model.zero_grad(set_to_none=True)

    for name, model in STEPS.items():
        runs = {system: partial(step, own, call, x) for system, own, call, x in _models(model)}
        yield Result(f"step: {name}", "ms", milliseconds(runs, rounds), LIMITS), ""


def measure_memory(rounds: int) -> Iterator[tuple[Result, str]]:
    """Measures the mebibytes that a training step in float32 allocates above the memory before the step."""
    for name in ("transformer of 6 layers, 32 sequences of 256", "residual net of 18 layers, 64 images of 112x112"):
        samples = {}
        for system, own, call, x in _models(STEPS[name]):
            for _ in range(2):
                training_step(call, x, own)
            gc.collect()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            training_step(call, x, own)
            samples[system] = [(torch.cuda.max_memory_allocated() - before) / 2**20]
        yield Result(f"peak memory of a step: {name}", "MiB", samples, LIMITS), ""


def measure_host(rounds: int) -> Iterator[tuple[Result, str]]:
    """Measures the microseconds of the host per call of small kernels, long after the device has finished."""

    def call(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y) * 2

    def several(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.softmax(torch.relu(x + y) * 2, -1) @ y
        return x

    for name, function, inputs in (
        ("call of `relu(x + y) * 2` on 8 elements", call, (torch.randn(8), torch.randn(8))),
        ("four products with softmax between them, 32x32", several, (torch.randn(32, 32), torch.randn(32, 32))),
    ):
        torch.compiler.reset()
        functions = {n: partial(system(function), *(x.cuda() for x in inputs)) for n, system in SYSTEMS.items()}
        milliseconds(functions, 1)
        samples: dict[str, list[float]] = {n: [] for n in functions}
        for _ in range(rounds):
            for system, function_ in functions.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(50):
                    function_()
                samples[system].append((time.perf_counter() - start) / 50 * 1e6)
        yield Result(name, "us", samples, LIMITS), ""


MEASUREMENTS: dict[str, Callable[[int], Iterator[tuple[Result, str]]]] = {
    "host": measure_host,
    "kernels": measure_kernels,
    "memory": measure_memory,
    "steps": measure_steps,
}


def cells(result: Result, bound: str) -> list[str]:
    """Returns a row of the table."""
    medians = [
        f"{result.median(name):.3g}" if result.median(name) < 100 else f"{result.median(name):.0f}" for name in SYSTEMS
    ]
    ratios = [f"{result.ratio(name):.2f}" for name in SYSTEMS if name != "minidynamo"]
    return [result.name, result.unit, *medians, *ratios, bound]


def main(arguments: list[str]) -> None:
    """Measures and prints; without a GPU, prints a message and ends with status 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(MEASUREMENTS)}; all without one")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it works, not for numbers")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document, too")
    options = parser.parse_args(arguments)
    names = chosen(parser, options.names, MEASUREMENTS, "measurement")
    if not torch.cuda.is_available():
        parser.exit(1, "there is no GPU here that torch can use\n")
    console = wide_console()
    console.print(f"{torch.cuda.get_device_name()}; Python {sys.version.split()[0]}, torch {torch.__version__}")
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            for result, bound in MEASUREMENTS[name](5 if options.quick else 50):
                rows.append(cells(result, bound))
                console.print("  ".join(cell for cell in rows[-1] if cell), style="dim", soft_wrap=True)
            torch.compiler.reset()
            torch.cuda.empty_cache()
    title = "Medians; ratios are minidynamo's share, pair by pair"
    show(console, title, COLUMNS, rows, left=(0, 1), for_document=options.markdown)


if __name__ == "__main__":
    main(sys.argv[1:])
