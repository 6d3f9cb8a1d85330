"""Draws the memory of a training step of a residual net of 18 layers: eager, compiled, and compiled without boxing.

    python -m examples.memory_figure [--output docs/memory.svg] [--batch 24] [--size 112]

In the boxed calling convention a compiled graph owns its inputs, so that each activation dies after its last use in
backward. Called with separate arguments, every activation lives until backward returns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

import minidynamo
from examples.models.resnet import ResNet
from minidynamo.autograd.aot import aot_compile
from minidynamo.graph.boxed import make_boxed
from minidynamo.observe.memory_timeline import MemoryTimeline, record_step


def residual_net(width: int = 64, blocks: Sequence[int] = (2, 2, 2, 2)) -> nn.Module:
    """Returns the residual net of the other examples in full width, with the stem for photographs."""
    torch.manual_seed(0)
    model = ResNet(classes=1000, blocks=blocks, width=width)
    model.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    model.relu = nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))  # type: ignore[assignment]
    return model


def unboxed(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns aot_eager, whose graphs are called with separate arguments: their caller keeps all arguments."""

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = make_boxed(graph)

        def run(*args: Any) -> Any:
            return call(list(args))

        return minidynamo.make_boxed_func(run)

    return aot_compile(gm, example_inputs, forward=compile_graph, backward=compile_graph, inference=compile_graph)


def measure(batch: int = 24, size: int = 112, width: int = 64, blocks: Sequence[int] = (2, 2, 2, 2)) -> MemoryTimeline:
    """Measures the memory of a step on random images (batch, 3, size, size): eager, boxed and unboxed."""
    images = torch.rand(batch, 3, size, size)
    backends: dict[str, Any] = {"eager": None, "boxed": "aot_eager", "unboxed": unboxed}
    timeline = MemoryTimeline()
    for name, backend in backends.items():
        model = residual_net(width, blocks)
        target = model if backend is None else minidynamo.compile(model, backend=backend)
        timeline[name] = record_step(target, [images])
    return timeline


def main() -> None:
    """Measures, prints the table and writes the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", default="memory.svg", type=Path, help="an .svg, or what matplotlib can write")
    parser.add_argument("--batch", default=24, type=int)
    parser.add_argument("--size", default=112, type=int)
    options = parser.parse_args()
    timeline = measure(options.batch, options.size)
    print(timeline)
    print(f"written to {timeline.save(options.output)}")


if __name__ == "__main__":
    main()
