"""Owns the reading of places, in subscripts by tensors, while a joint graph is traced.

Each is a symbol by which nothing can be decided: torch refuses to trace what would. A node of the traced graph reads
the number from the tensor, in forward, and checks it.
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
from minidynamo.graph.tensor_index import place_of
from minidynamo.graph.unbacked_symints import number_in_data


def let_have_symbols(mode: FakeTensorMode) -> None:
    """Let there be symbols, where all sizes are known."""
    if mode.shape_env is None:
        compat.load_symbols()
        mode.shape_env = compat.symbolic().ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


class PlacesRead:
    """Reads places, and knows the numbers of those that it has read.

    The same tensor, not written to since, holds the same number: `x[i] += 1` reads and writes the same elements.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[fx.Node, Any], tuple[torch.SymInt, fx.Node]] = {}

    def __call__(self, index: torch.Tensor, size: Any, position: int) -> torch.SymInt:
        """The number in `index`, for a dimension of `size`; see `tensor_places.run_with_places`."""
        mode = get_proxy_mode()
        assert mode is not None and isinstance(index, compat.FakeTensor)
        tracer: Any = mode.tracer
        proxy = tracer.unwrap_proxy(index)
        found = (proxy.node, key(size))
        number, read = self._known.get(found, (None, proxy.node))
        newest = next(iter(reversed(tracer.graph.nodes)))
        if number is None or _may_have_written(index, newest, read):
            with disable_proxy_modes_tracing():
                # Below 1 it would be a constant, which nobody reads and checks.
                number = number_in_data(index.fake_mode.shape_env, None if key(size) == 1 else size)
            made = tracer.create_proxy("call_function", place_of, (proxy, tracer.unwrap_proxy(size), position), {})
            track_tensor_tree(number, made, constant=None, tracer=tracer)
            newest = made.node
        self._known[found] = number, newest
        return number


def _may_have_written(index: torch.Tensor, newest: fx.Node, read: fx.Node) -> bool:
    """Whether a node behind `read`, up to `newest`, may have written to the memory of `index`."""
    while newest is not read:
        given = [node.meta.get("val") for node in newest.all_input_nodes]
        there = any(isinstance(v, torch.Tensor) and compat.share_memory(v, index) for v in given)
        if there and newest.target is not place_of and _may_write(newest):
            return True
        newest = newest.prev
    return False


def _may_write(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, OpOverload):
        return True
    return compat.schema_of(op).is_mutable or is_undeclared_write(op, node.args)
