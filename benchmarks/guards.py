"""Measures the cost of a call besides its graph: guards, reading the inputs of the graph, and choosing a version.

A function that returns the same tensor each time replaces the graph, on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import minidynamo
from benchmarks.measure import Limit, Result, interleaved

LIMIT_OF_A_FUNCTION = Limit("torch.compile", 0.15)
LIMIT_OF_A_MODULE = Limit("torch.compile", 0.5)
FIRST = "first of 8 versions"
LIMIT_OF_THE_LAST = Limit(FIRST, 3.0)
SIZES = (75, 150, 300)


def _given(result: Tensor) -> dict[str, Callable[[Any], Any]]:
    """Returns for each system a compile function whose graphs compute nothing."""

    def boxed(gm: torch.fx.GraphModule, example_inputs: object) -> Callable[..., Any]:
        def call(inputs: list[Any]) -> tuple[Tensor]:
            inputs.clear()
            return (result,)

        call.__dict__["_boxed_call"] = True
        return call

    def plain(gm: torch.fx.GraphModule, example_inputs: object) -> Callable[..., Any]:
        return lambda *inputs: (result,)

    return {
        "minidynamo": lambda target: minidynamo.compile(target, backend=boxed),
        "torch.compile": lambda target: torch.compile(target, backend=plain),
    }


class Layers(nn.Module):
    """A stack of linear layers with `parameters` parameters."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(parameters // 2))

    def forward(self, x: Tensor) -> Tensor:
        """Runs the layers in sequence."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def two_tensors() -> dict[str, Callable[[], object]]:
    """Returns a function of two tensors, for each system."""
    x, y = torch.randn(8), torch.randn(8)

    def caller(system: Callable[[Any], Any]) -> Callable[[], object]:
        def f(x: Tensor, y: Tensor) -> Tensor:
            return torch.relu(x + y) * 2

        compiled = system(f)
        return lambda: compiled(x, y)

    return {name: caller(system) for name, system in _given(x).items()}


def module(parameters: int) -> dict[str, Callable[[], object]]:
    """Returns a module with `parameters` parameters, for each system."""
    x = torch.randn(2, 4)

    def caller(system: Callable[[Any], Any]) -> Callable[[], object]:
        compiled = system(Layers(parameters))
        return lambda: compiled(x)

    return {name: caller(system) for name, system in _given(x).items()}


def eight_versions() -> dict[str, Callable[[], object]]:
    """Returns a function with eight versions, called with arguments for the first and the last version in the search
    order."""
    x = torch.randn(2)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y.sum()

    compiled = minidynamo.compile(f, backend=_backend_of(x), dynamic=False)
    arguments = [torch.randn(size) for size in range(2, 10)]
    for y in arguments:
        compiled(x, y)
    return {FIRST: lambda: compiled(x, arguments[-1]), "minidynamo": lambda: compiled(x, arguments[0])}


def _backend_of(result: Tensor) -> Callable[..., Any]:
    return lambda gm, example_inputs: minidynamo.make_boxed_func(lambda *inputs: (result,))


def slopes(by_size: dict[int, dict[str, list[float]]]) -> dict[str, list[float]]:
    """Returns the nanoseconds for each further parameter, round by round, from microseconds by number of parameters."""
    small, large = min(by_size), max(by_size)
    return {
        name: [(b - a) / (large - small) * 1e3 for a, b in zip(by_size[small][name], by_size[large][name])]
        for name in by_size[small]
    }


def measure(quick: bool) -> Iterator[Result]:
    """Measures microseconds of calls whose graph computes nothing, and nanoseconds for each parameter."""
    rounds = 3 if quick else 40
    with torch.no_grad():
        samples = interleaved(two_tensors(), rounds=rounds, calls=2000, scale=1e6)
        yield Result("overhead of a function of two tensors", "us", samples, (LIMIT_OF_A_FUNCTION,))
        by_size = {size: interleaved(module(size), rounds=rounds, calls=100, scale=1e6) for size in SIZES}
        for size, samples in by_size.items():
            limits = (LIMIT_OF_A_MODULE,) if size == max(SIZES) else ()
            yield Result(f"overhead of a module with {size} parameters", "us", samples, limits)
        yield Result("overhead for each further parameter", "ns", slopes(by_size), ())
        samples = interleaved(eight_versions(), rounds=rounds, calls=2000, scale=1e6)
        yield Result("call that the last of 8 versions fits", "us", samples, (LIMIT_OF_THE_LAST,))
