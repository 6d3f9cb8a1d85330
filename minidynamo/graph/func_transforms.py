"""Owns what a transform of torch.func (`grad`, `vmap`, ...) over a captured function is in a graph: one call of it.

It checks nothing: the tracer has made sure that the function only computes tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from minidynamo.graph.pytree import Structure, leaves, rebuild, structure_of
from minidynamo.graph.scalar_arguments import run_whole

Subgraph = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Argument:
    """Stands for one of the tensors among the arguments of the transformed function."""

    position: int


@dataclass(frozen=True, eq=False)
class Transformation:
    """`transform(function, **options)(*args, **kwargs)`, with an `Argument` in the place of each tensor.

    `result` is the structure of what the function returns; `takes` what it is called with, where that is not `args`.
    `whole`: a call inside takes a number that varies as a plain one (`scalar_arguments.py`).
    """

    transform: Callable[..., Any]
    options: Mapping[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Structure
    takes: tuple[Any, ...] | None = None
    whole: bool = False

    def call(self, subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> Any:
        """The call, for a function that is `subgraph(*captured, *tensors)`; `inputs` are those, in this order."""
        tensors = [leaf for leaf in leaves([*self.args, dict(self.kwargs)]) if isinstance(leaf, Argument)]
        captured, given = inputs[: -len(tensors)], inputs[-len(tensors) :]
        # A call of a graph module prints the generated text around an error, which the caller may handle.
        run = subgraph.forward if isinstance(subgraph, torch.fx.GraphModule) else subgraph

        def function(*args: Any, **kwargs: Any) -> Any:
            spec = leaves([*(self.args if self.takes is None else self.takes), dict(self.kwargs)])
            found = [tensor for slot, tensor in zip(spec, leaves([*args, kwargs])) if isinstance(slot, Argument)]
            return rebuild(self.result, run(*captured, *found))

        def filled(value: Any) -> Any:
            parts = [given[leaf.position] if isinstance(leaf, Argument) else leaf for leaf in leaves(value)]
            return rebuild(structure_of(value), parts)

        return self.transform(function, **self.options)(*filled(self.args), **filled(dict(self.kwargs)))

    def node_function(self, name: str) -> Callable[..., Any]:
        """What a graph calls: it takes the subgraph and its inputs, and gives the tensors of the result in a tuple."""

        def run(subgraph: Subgraph, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(leaves(self.call(subgraph, inputs)))

        run.__name__ = run.__qualname__ = name
        if self.whole:
            facts = (self.transform.__module__, self.transform.__qualname__, dict(self.options), self.args, self.kwargs)
            run_whole(run, repr((*facts, self.takes, self.result)))
        return run


class PullBack:
    """The function that `torch.func.vjp` gives, for a function that was captured: `subgraph`, called on `inputs`."""

    def __init__(self, made: Transformation, subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> None:
        self._pull_back = made.call(subgraph, inputs)[1]

    def __call__(self, cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        return self._pull_back(cotangents, retain_graph=retain_graph, create_graph=create_graph)


def transformed(
    transform: Callable[..., Any],
    function: Callable[..., Any],
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`transform(function, **options)(*args, **kwargs)`; while a program is traced, a node of its graph."""
    return transform(function, **options)(*args, **kwargs)
