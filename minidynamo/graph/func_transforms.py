"""Owns the function of a torch.func transform (`grad`, `vmap`, ...) in a graph: one node for one transformed call.

Checks nothing: the tracer ensures that the transformed function only computes tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from minidynamo.core.records import record
from minidynamo.graph.pytree import Structure, leaves, rebuild, structure_of

Subgraph = Callable[..., tuple[torch.Tensor, ...]]


@record(frozen=True)
class Argument:
    """Marks the position of a tensor among the arguments of the transformed function."""

    position: int


@record(frozen=True, eq=False)
class Transformation:
    """The call `transform(function, **options)(*args, **kwargs)`, with an `Argument` in place of each tensor."""

    #: such as `torch.func.grad`
    transform: Callable[..., Any]
    options: Mapping[str, Any]
    #: the positional arguments, with nested containers
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: the structure of the function's result
    result: Structure
    #: the arguments passed by the transform to the function, where different from `args`
    takes: tuple[Any, ...] | None = None

    def call(self, subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> Any:
        """Runs the call, for the function `subgraph(*captured, *tensors)`; `inputs` are captured tensors, then
        arguments.
        """
        tensors = [leaf for leaf in leaves([*self.args, dict(self.kwargs)]) if isinstance(leaf, Argument)]
        captured, arguments = inputs[: -len(tensors)], inputs[-len(tensors) :]
        # Not `subgraph(...)`: a graph module prints its generated text around an error, even if the caller handles it.
        run = subgraph.forward if isinstance(subgraph, torch.fx.GraphModule) else subgraph

        def function(*args: Any, **kwargs: Any) -> Any:
            spec = leaves([*(self.args if self.takes is None else self.takes), dict(self.kwargs)])
            found = [tensor for slot, tensor in zip(spec, leaves([*args, kwargs])) if isinstance(slot, Argument)]
            return rebuild(self.result, run(*captured, *found))

        def filled(value: Any) -> Any:
            parts = [arguments[leaf.position] if isinstance(leaf, Argument) else leaf for leaf in leaves(value)]
            return rebuild(structure_of(value), parts)

        return self.transform(function, **self.options)(*filled(self.args), **filled(dict(self.kwargs)))

    def node_function(self, name: str) -> Callable[..., Any]:
        """Returns the function that a graph calls: from subgraph and inputs, it computes the tensors of the result."""

        def run(subgraph: Subgraph, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(leaves(self.call(subgraph, inputs)))

        run.__name__ = run.__qualname__ = name
        return run


class PullBack:
    """The function returned by `torch.func.vjp`, for a captured function: `subgraph`, called on `inputs`."""

    def __init__(self, transformation: Transformation, subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> None:
        self._pull_back = transformation.call(subgraph, inputs)[1]

    def __call__(self, cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        return self._pull_back(cotangents, retain_graph=retain_graph, create_graph=create_graph)


def transformed(
    transform: Callable[..., Any],
    function: Callable[..., Any],
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Returns `transform(function, **options)(*args, **kwargs)`; during tracing, this call is a node of the graph."""
    return transform(function, **options)(*args, **kwargs)
