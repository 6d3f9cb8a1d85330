"""Owns the reading of positions from index tensors while a joint graph is traced.

Each position becomes an unbacked symbol: torch refuses to trace code that branches on the number. A node of the traced
graph reads the number from the tensor, in forward, and checks the bounds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, track_tensor_tree

from minidynamo import compat
from minidynamo.autograd.graph.mutation import is_undeclared_write
from minidynamo.autograd.graph.numbers import key
from minidynamo.compat import FakeTensorMode, OpOverload
from minidynamo.core.lazy_modules import load_once
from minidynamo.graph.unbacked_symints import checked_index, unbacked_symbol


def add_shape_env(mode: FakeTensorMode) -> None:
    """Gives `mode` a shape environment for symbols, if all sizes are known so far."""
    if mode.shape_env is None:
        load_once(compat.load_symbols)
        mode.shape_env = compat.symbolic().ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


class IndexReads:
    """Reads positions from tensors, once per tensor and version.

    A tensor that was not written to holds the same number: `x[i] += 1` reads and writes the same elements.
    """

    def __init__(self) -> None:
        #: Tensor and size -> the number, and the newest node at its last use.
        self._known: dict[tuple[fx.Node, Any], tuple[torch.SymInt, fx.Node]] = {}

    def __call__(self, index: torch.Tensor, size: Any, position: int) -> torch.SymInt:
        """Returns the number in `index`, for a dimension of `size`; see `run_with_indices`."""
        mode = get_proxy_mode()
        assert mode is not None and isinstance(index, compat.FakeTensor)
        tracer: Any = mode.tracer
        proxy = tracer.unwrap_proxy(index)
        index_key = (proxy.node, key(size))
        number, read = self._known.get(index_key, (None, proxy.node))
        newest = next(iter(reversed(tracer.graph.nodes)))
        if number is None or _may_have_written(index, newest, read):
            with disable_proxy_modes_tracing():
                # A range with one value would make the number a constant, and no node would check the position.
                number = unbacked_symbol(index.fake_mode.shape_env, None if key(size) == 1 else size)
            read_proxy = tracer.create_proxy(
                "call_function", checked_index, (proxy, tracer.unwrap_proxy(size), position), {}
            )
            track_tensor_tree(number, read_proxy, constant=None, tracer=tracer)
            newest = read_proxy.node
        self._known[index_key] = number, newest
        return number


def _may_have_written(index: torch.Tensor, newest: fx.Node, read: fx.Node) -> bool:
    """Returns whether a node after `read`, up to `newest`, may have written to the memory of `index`."""
    while newest is not read:
        values = [node.meta.get("val") for node in newest.all_input_nodes]
        shares_memory = any(isinstance(v, torch.Tensor) and compat.share_memory(v, index) for v in values)
        if shares_memory and newest.target is not checked_index and _may_write(newest):
            return True
        newest = newest.prev
    return False


def _may_write(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, OpOverload):
        return True
    return compat.schema_of(op).is_mutable or is_undeclared_write(op, node.args)
