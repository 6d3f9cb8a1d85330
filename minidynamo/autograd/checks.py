"""Owns which operations of a joint graph are run although nobody uses their results: those that may raise an error.

The error hangs on the values of tensors: a position out of range, a matrix that cannot be inverted, a division by zero.
What else must run whoever uses it (random numbers, assertions) is said in `partition.py`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from minidynamo.compat import OpOverload

_BY_VALUES_NAMES = """
    cholesky ctc_loss embedding gather geqrf index inverse linalg lstsq lu_ max_unpool nll_loss one_hot ormqr put
    quantile scatter searchsorted take triangular_solve
"""
_BY_VALUES = tuple(_BY_VALUES_NAMES.split())
# Operations that raise for integers and bools alone.
_OF_INTEGERS = frozenset(("div", "floor_divide", "fmod", "pow", "remainder", "rsub", "sub"))


def unused_checks(graph: fx.Graph, used: Collection[fx.Node]) -> list[fx.Node]:
    """The operations of a functional graph, outside of `used`, that may raise for some values of their arguments."""
    return [node for node in graph.nodes if node not in used and _may_raise(node)]


def _may_raise(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    name = str(node.target.overloadpacket.__name__)
    if name in _OF_INTEGERS:
        result = node.meta.get("val")
        return isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex())
    return any(word in name for word in _BY_VALUES)
