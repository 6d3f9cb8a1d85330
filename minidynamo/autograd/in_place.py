"""Owns which operations of a backward graph that runs operation by operation write into the memory of an argument.

Autograd adds gradients up in place, divides them by numbers of elements, and fills zeros with parts of them; in a
functional graph each such step is a new tensor. Generated code has rules of its own for memory that is used again, so
its graphs are left as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from minidynamo.autograd.numbers import keys
from minidynamo.autograd.partition import maker_of
from minidynamo.autograd.written_inputs import memory_of
from minidynamo.compat import OpOverload
from minidynamo.graph_memory import FILLING, may_share

aten = torch.ops.aten

_IN_PLACE = {aten.add.Tensor: aten.add_.Tensor, aten.div.Scalar: aten.div_.Scalar} | FILLING


def write_in_place(graph: fx.Graph) -> None:
    """Let sums, quotients by numbers, and what is put into zeros, take over the memory of an argument that was made for
    them alone."""
    for node in graph.nodes:
        if node.target not in _IN_PLACE:
            continue
        first, *rest = node.args
        if node.target is aten.add.Tensor and not _is_given_up(first, node) and not node.kwargs:
            first, rest = rest[0], [first]
        if _is_given_up(first, node) and (isinstance(rest[0], fx.Node) or node.target is not aten.add.Tensor):
            node.target, node.args = _IN_PLACE[node.target], (first, *rest)
            node.meta["val"] = first.meta["val"]


def _is_given_up(value: Any, result: fx.Node) -> bool:
    """Whether `value` is new memory in the layout of `result`, which alone uses it."""
    if not isinstance(value, fx.Node) or len(value.users) != 1 or not _is_new(value):
        return False
    return _layout(value) == _layout(result) and result.args.count(value) == 1


def _is_new(node: fx.Node) -> bool:
    source = maker_of(node)
    if node.target in _IN_PLACE.values():
        return True
    if not isinstance(source.target, OpOverload) or source.target.namespace != "aten" or may_share(source):
        return False
    memory = memory_of(node)  # a schema does not say that an operator may return its argument as it is
    return memory is not None and all(memory_of(other) != memory for other in source.all_input_nodes)


def _layout(node: fx.Node) -> Any:
    value = node.meta["val"]
    return (value.dtype, keys(value.shape), keys(value.stride())) if memory_of(node) is not None else node
