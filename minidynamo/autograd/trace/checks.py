"""Owns the operations of a joint graph that run although their results are unused, because they may raise an error.

The error depends on the values of tensors: a position out of range, a singular matrix, a division by zero. Or the error
depends on memory, such as a window beyond the end of the storage; fake tensors know only the size of their memory.
Checks that torch omits during tracing are added here. `autograd/partition/partition.py` selects the other unused nodes
to run (random numbers, assertions).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.graph.views import SCATTER_VIEWS
from minidynamo.compat import OpOverload
from minidynamo.graph.unbacked_symints import checked_index

aten = torch.ops.aten

_RAISES_FOR_VALUES_NAMES = """
    binary_cross_entropy cholesky ctc_loss embedding gather geqrf index inverse linalg lstsq lu_ max_unpool nll_loss
    one_hot ormqr put quantile scatter searchsorted take triangular_solve
"""
_RAISES_FOR_VALUES = tuple(_RAISES_FOR_VALUES_NAMES.split())
# Operations that raise only for integers and bools.
_RAISES_FOR_INTEGERS = frozenset(("div", "floor_divide", "fmod", "pow", "remainder", "rsub", "sub"))


def unused_checks(graph: fx.Graph, used: Collection[fx.Node]) -> list[fx.Node]:
    """Returns the operations of a functional graph, outside of `used`, that may raise for some values of their
    arguments."""
    return [node for node in graph.nodes if node not in used and _may_raise(node)]


def _may_raise(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return node.target is checked_index
    name = str(node.target.overloadpacket.__name__)
    if node.target is aten.as_strided.default:
        return not _is_within_memory(node)
    if node.target in SCATTER_VIEWS:  # the positions are known
        return False
    if name in _RAISES_FOR_INTEGERS:
        result = node.meta.get("val")
        return isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex())
    return any(word in name for word in _RAISES_FOR_VALUES)


def _is_within_memory(window: fx.Node) -> bool:
    """Returns whether a window is known to be within the memory of its source tensor.

    The storage size of a fake tensor is no help: the storage has grown with the window.
    """
    view, source = window.meta["val"], window.args[0]
    if not isinstance(source, fx.Node) or has_symbols([view, source.meta["val"]]):
        return False
    return bool(_end(view) <= _end(source.meta["val"]))


def _end(tensor: torch.Tensor) -> Any:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.storage_offset() + reach + 1 if tensor.numel() else 0


def assert_values(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Adds eager's checks of argument values, if torch does not trace the checks."""
    if target in (torch.nn.functional.one_hot, aten.one_hot.default):
        operands = (*args, *kwargs.values())
        _assert_classes(*operands[:2])


def _assert_classes(classes: torch.Tensor, count: int = -1) -> None:
    if classes.device.type != "cpu":  # on a GPU the check would wait for the device
        return
    aten._assert_async.msg((classes >= 0).all(), "Class values must be non-negative.")
    if not isinstance(count, int) or count > 0:  # a count of -1 depends on the data, and the call is not traced
        aten._assert_async.msg((classes < count).all(), "Class values must be smaller than num_classes.")
