"""Owns the collectives of torch.distributed as functions of a captured graph: one node per collective.

A compiled graph is split at each node (`autograd/segments.py`), and the steps run in the order of the program. So no
collective is dropped, repeated or moved before another one, and all ranks that run the same program communicate in the
same order. Groups are passed by name.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.graph.autograd_calls import eager_operator, with_eager_backward

# The functions that communicate.
_COLLECTIVES: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def communicates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of a graph that communicates with other ranks."""
    _COLLECTIVES.add(with_eager_backward(function))
    return function


class PendingWork:
    """Replaces the `Work` object of an asynchronous collective during capture."""


def _collective(name: str) -> Callable[..., Any]:
    """Returns a function of torch.distributed as a node of captured graphs, with all arguments by position: `group` by
    name, `op` as the name of a reduction.

    On fake tensors the function does not communicate; it returns a `PendingWork` if it is asynchronous, else None.
    """

    def call(*args: Any) -> Any:
        named = dict(zip(parameters(name), args))
        if compat.are_fakes_running():
            return PendingWork() if named.get("async_op", name in ALWAYS_ASYNCHRONOUS) else None
        named["group"] = compat.group_named(named["group"])
        if "op" in named:
            named["op"] = getattr(torch.distributed.ReduceOp, named["op"])
        return getattr(torch.distributed, name)(**named)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Calls `torch.distributed.{name}`."
    return communicates(call)


ALWAYS_ASYNCHRONOUS = ("isend", "irecv")
"""Functions without `async_op` that return a `Work`."""


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a function of torch.distributed, by name."""
    return dict(inspect.signature(getattr(torch.distributed, name)).parameters)


NODE_FUNCTIONS = {name: _collective(name) for name in compat.COLLECTIVES}
"""The functions of nodes, by the name of the function of torch.distributed."""


@communicates
def batch_isend_irecv(ops: Sequence[tuple[str, torch.Tensor, int, int, str]]) -> list[Any]:
    """Calls `torch.distributed.batch_isend_irecv` with an operation per (name of the function, tensor, rank in the
    group, tag, group), except during capture.
    """
    if compat.are_fakes_running():
        return [PendingWork() for _ in ops]
    operations = [
        torch.distributed.P2POp(
            getattr(torch.distributed, name), tensor, group=compat.group_named(group), tag=tag, group_peer=peer
        )
        for name, tensor, peer, tag, group in ops
    ]
    return torch.distributed.batch_isend_irecv(operations)


@communicates
def barrier(group: str) -> None:
    """Calls `torch.distributed.barrier`, except during capture."""
    if not compat.are_fakes_running():
        torch.distributed.barrier(compat.group_named(group))


@communicates
def wait(work: Any) -> None:
    """Calls `work.wait()`, except during capture: later steps see the results of an asynchronous collective."""
    if not isinstance(work, PendingWork):
        work.wait()


POINT_TO_POINT = {batch_isend_irecv, *(NODE_FUNCTIONS.get(name) for name in ("send", "recv", "isend", "irecv"))}
"""Functions whose calls differ between ranks that communicate with each other."""


def is_collective(node: fx.Node) -> bool:
    """Returns whether a node communicates with other ranks."""
    if node.op != "call_function":
        return False
    return _is_marked(node.target) or _namespace(node) in compat.COLLECTIVE_NAMESPACES


def _is_marked(target: object) -> bool:
    return isinstance(target, types.FunctionType) and target in _COLLECTIVES


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
