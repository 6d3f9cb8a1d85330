"""Owns the building of functional ATen graphs: each node is emitted together with its fake value.

It knows no rules of autograd or aliasing; `functionalize` and `partition` decide what to emit.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.numbers import is_dense_in, is_symbolic, key, keys, simplified
from minidynamo.autograd.graph.provenance import COPIED_META, line_of_node
from minidynamo.compat import FakeTensorMode, OpOverload
from minidynamo.errors import located
from minidynamo.fake import strides
from minidynamo.memory.graph_plan import may_share

aten = torch.ops.aten


def fake(value: Any) -> Any:
    """Returns `value`, with each node replaced by its fake value."""
    return fx.map_arg(value, lambda node: node.meta["val"])


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy of a graph, without submodules, that may be changed."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(gm.graph, {}))
    return compat.graph_module(torch.nn.Module(), copy)


class GraphBuilder:
    """Appends nodes to `graph`. Inside `replacing`, new nodes take over the location and checkpoint of the replaced
    node."""

    def __init__(self, mode: FakeTensorMode, graph: fx.Graph | None = None) -> None:
        self.mode = mode
        self.graph = fx.Graph() if graph is None else graph
        #: Meta of new nodes.
        self.meta: dict[str, Any] = {}
        #: Nodes that compute symbolic numbers, by their expression.
        self.numbers: dict[Any, fx.Node] = {}

    @contextlib.contextmanager
    def replacing(self, node: fx.Node) -> Iterator[None]:
        """Gives nodes emitted inside, and errors raised inside, the user location of the replaced `node`."""
        before = self.meta
        self.meta = {key: node.meta[key] for key in COPIED_META if key in node.meta}
        try:
            with located(line_of_node(node)):
                yield
        finally:
            self.meta = before

    def placeholder(self, name: str, value: Any) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return self.recorded(node)

    def recorded(self, node: fx.Node) -> fx.Node:
        """Returns `node`; records the first node for each number."""
        if is_symbolic(value := node.meta["val"]):
            self.numbers.setdefault(key(value), node)
        return node

    def emit(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Appends `op(*args, **kwargs)`; computes the fake value from the arguments' fake values."""
        with self.computing(), torch.no_grad():
            value = op(*fake(args), **fake(kwargs))
        return self.emit_known(op, args, kwargs, value)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Makes operations on fake values return fake values."""
        symbolic = self.mode.shape_env is not None
        with self.mode, compat.python_dispatcher() if symbolic else contextlib.nullcontext():
            yield

    def emit_known(self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> fx.Node:
        """Appends `op(*args, **kwargs)` with a known fake value."""
        name = op.overloadpacket.__name__ if isinstance(op, OpOverload) else None
        node = self.graph.create_node("call_function", op, args, kwargs, name)
        node.meta.update(self.meta, val=value)
        return self.recorded(node)

    def element(self, node: fx.Node, index: int) -> fx.Node:
        """Appends `node[index]`."""
        return self.emit_known(operator.getitem, (node, index), {}, node.meta["val"][index])

    def number(self, op: Callable[..., Any], *args: Any) -> Any:
        """Returns the number `op(*args)`, or its node if an argument is a node."""
        return self.emit(op, *args) if any(isinstance(arg, fx.Node) for arg in args) else op(*args)

    def size(self, node: fx.Node, dim: int) -> int | fx.Node:
        """Returns a size of `node`, or the node of a symbolic size."""
        size = simplified(node.meta["val"].shape[dim])
        if not isinstance(size, torch.SymInt):
            return int(size)
        number = self.numbers.get(key(size))
        return self.emit_known(aten.sym_size.int, (node, dim), {}, size) if number is None else number

    def sizes(self, node: fx.Node) -> list[int | fx.Node]:
        """Returns the shape of `node` as an argument of an operation."""
        return [self.size(node, dim) for dim in range(node.meta["val"].ndim)]

    def reshape(self, node: fx.Node, like: fx.Node) -> fx.Node:
        """Returns `node` in the shape of `like`: a view if its strides allow, else a copy."""
        if keys(node.meta["val"].shape) == keys(like.meta["val"].shape):
            return node
        shape = self.sizes(like)
        try:
            return self.emit(aten.view.default, node, shape)
        except (RuntimeError, ValueError):
            copy = self.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
            return self.emit(aten.view.default, copy, shape)

    def restride(self, node: fx.Node, like: torch.Tensor) -> fx.Node:
        """Returns `node` with the strides of `like`, by a permuted copy; `node` itself if `like` has gaps or
        overlaps."""
        if has_strides_of(node.meta["val"], like) or not is_dense(like):
            return node
        return self.in_memory_order(node, like, aten.clone.default, memory_format=torch.contiguous_format)

    def in_memory_order(self, node: fx.Node, like: torch.Tensor, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        """Applies a pointwise operation with contiguous results on permuted dimensions: the final result has the
        strides of `like`."""
        order = sorted(range(like.ndim), key=lambda d: (-like.stride()[d], -like.shape[d], d))
        if order == list(range(like.ndim)):
            return self.emit(op, node, *args, **kwargs)
        inner = self.emit(op, self.emit(aten.permute.default, node, order), *args, **kwargs)
        return self.emit(aten.permute.default, inner, [order.index(d) for d in range(like.ndim)])

    def cast(self, node: fx.Node, like: torch.Tensor) -> fx.Node:
        """Returns `node` with the dtype and device of `like`."""
        value = node.meta["val"]
        if value.device != like.device:
            return self.emit(aten._to_copy.default, node, dtype=like.dtype, device=like.device)
        return node if value.dtype == like.dtype else self.emit(aten._to_copy.default, node, dtype=like.dtype)


def same_layout(a: Any, b: Any, memory: bool = False) -> bool:
    """Returns whether two fake values have the same shape, strides, dtype and device; with `memory`, also the same
    memory."""
    if a is b:
        return True
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or a.layout is not torch.strided:
        return False
    if (a.dtype, a.device, b.layout) != (b.dtype, b.device, a.layout):
        return False
    if keys(a.shape) != keys(b.shape) or keys(a.stride()) != keys(b.stride()):
        return False
    same_offset = key(a.storage_offset()) == key(b.storage_offset())
    return not memory or (same_offset and compat.share_memory(a, b))


def has_same_result_layout(user: fx.Node, old: fx.Node, new: fx.Node) -> bool:
    """Returns whether `user` computes new values in the same layout, by the same rule, from `new` instead of `old`.
    The two differ only in layout."""
    op, result = user.target, user.meta.get("val")
    if not isinstance(op, OpOverload) or op.namespace != "aten" or not isinstance(result, torch.Tensor):
        return False
    if may_share(user) or compat.schema_of(op).is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    args, kwargs = fx.map_arg((user.args, user.kwargs), lambda node: new if node is old else node)
    with GraphBuilder(new.meta["val"].fake_mode, user.graph).computing(), torch.no_grad():
        return same_layout(op(*fake(args), **fake(kwargs)), result)


def has_strides_of(value: torch.Tensor, like: torch.Tensor) -> bool:
    """Returns whether two tensors of one shape have the same strides in every dimension with several elements."""
    return keys(value.stride()) == keys(like.stride()) or _strides(value) == _strides(like)


def _strides(value: torch.Tensor) -> list[int]:
    """Returns the strides of dimensions with several elements."""
    return [stride for size, stride in zip(value.shape, value.stride()) if size > 1]


def is_dense(value: torch.Tensor) -> bool:
    """Returns whether the elements fill their memory without gaps or overlaps."""
    row_major = range(value.ndim - 1, -1, -1)  # needs no condition on symbolic sizes
    return is_dense_in(row_major, value.shape, value.stride()) or strides.is_dense(value.shape, value.stride())
