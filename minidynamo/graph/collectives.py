"""Owns the collectives of torch.distributed as functions of a captured graph: one node per collective.

A compiled graph is split at each node (`autograd/segments.py`), and the steps run in the order of the program. So no
collective is dropped, repeated or moved before another one, and all ranks that run the same program communicate in the
same order. Groups are passed by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from minidynamo import compat
from minidynamo.graph.autograd_calls import eager_operator, with_eager_backward
from minidynamo.graph.pytree import tensors_in

F = TypeVar("F", bound=Callable[..., Any])

# The functions that are defined here.
_COLLECTIVES: set[Callable[..., Any]] = set()


class PendingWork:
    """Replaces the `Work` object of an asynchronous collective during capture."""


def _collective(function: F) -> F:
    """Makes a function a node of captured graphs.

    On fake tensors the function does not communicate; it returns a `PendingWork` if it is asynchronous, else None.
    """

    def call(*args: Any) -> Any:
        if any(isinstance(value, compat.FakeTensor | PendingWork) for value in [*args, *tensors_in(args)]):
            return PendingWork() if args[-1] is True else None
        return function(*args)

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = function.__doc__
    _COLLECTIVES.add(with_eager_backward(call))
    return call  # type: ignore[return-value]


def _reduction(name: str) -> Any:
    return getattr(torch.distributed.ReduceOp, name)


@_collective
def all_reduce(tensor: torch.Tensor, op: str, group: str, async_op: bool) -> Any:
    """Calls `torch.distributed.all_reduce`."""
    return torch.distributed.all_reduce(tensor, _reduction(op), compat.group_named(group), async_op)


@_collective
def broadcast(tensor: torch.Tensor, src: int | None, group: str, group_src: int | None, async_op: bool) -> Any:
    """Calls `torch.distributed.broadcast`."""
    return torch.distributed.broadcast(tensor, src, compat.group_named(group), async_op, group_src)


@_collective
def all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, group: str, async_op: bool) -> Any:
    """Calls `torch.distributed.all_gather_into_tensor`, by its newest name."""
    return compat.ALL_GATHERS[-1](output, tensor, compat.group_named(group), async_op)


@_collective
def reduce_scatter_tensor(output: torch.Tensor, tensor: torch.Tensor, op: str, group: str, async_op: bool) -> Any:
    """Calls `torch.distributed.reduce_scatter_tensor`, by its newest name."""
    group = compat.group_named(group)
    return compat.REDUCE_SCATTERS[-1](output, tensor, _reduction(op), group, async_op)


@_collective
def all_to_all_single(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_splits: Sequence[int] | None,
    input_splits: Sequence[int] | None,
    group: str,
    async_op: bool,
) -> Any:
    """Calls `torch.distributed.all_to_all_single`."""
    splits: list[Any] = [None if sizes is None else [*sizes] for sizes in (output_splits, input_splits)]
    return torch.distributed.all_to_all_single(
        output, tensor, splits[0], splits[1], compat.group_named(group), async_op
    )


@with_eager_backward
def barrier(group: str) -> None:
    """Calls `torch.distributed.barrier`, except during capture."""
    if not compat.are_fakes_running():
        torch.distributed.barrier(compat.group_named(group))


_COLLECTIVES.add(barrier)


@_collective
def wait(work: Any) -> None:
    """Calls `work.wait()`: later steps see the results of an asynchronous collective."""
    work.wait()


@with_eager_backward
def bucket_border() -> None:
    """Ends a segment of a graph, so that autograd returns the gradients of the segment together."""


def is_collective(node: fx.Node) -> bool:
    """Returns whether a node communicates with other ranks."""
    if node.op != "call_function":
        return False
    return node.target in _COLLECTIVES or _namespace(node) in compat.COLLECTIVE_NAMESPACES


def _namespace(node: fx.Node) -> str:
    called = eager_operator(node.target)
    return getattr(called, "namespace", str(called).partition(".")[0] if called is not None else "")


def move_waits(graph: fx.Graph) -> None:
    """Moves each wait for the result of a functional collective to its first use: operations between the two run
    during the communication.

    A wait is not moved past a write, since a collective may still read its argument.
    """
    for node in list(graph.nodes):
        if not is_collective(node) or not str(eager_operator(node.target)).startswith("_c10d_functional.wait_tensor"):
            continue
        users, later = set(node.users), node.next
        while later.op != "output" and later not in users and not later.meta.get("mutates"):
            later = later.next
        if later is not node.next:
            later.prepend(node)
