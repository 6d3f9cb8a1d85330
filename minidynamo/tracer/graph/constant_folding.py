"""Owns constant folding: the values of tensors that the graph computes from constants alone.

A program may read such a value while it is traced, as in `torch.arange(2, x.dim()).tolist()`. Torch's own functions
compute the value, with the same last bit as a run of the graph. No guard is needed, because no external value
contributes. Constants of Python are not here.

A comparison of a uniform draw with a number outside of its range is a constant, too: layers of transformers are skipped
if `torch.rand([]) < layerdrop`, and nearly all models have a layerdrop of 0."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import torch
import torch.fx

from minidynamo.compat import memory_of, without_torch_function
from minidynamo.graph.pytree import leaves
from minidynamo.tracer.graph.dead_code import PYTHON_NAMESPACES, has_no_effect, is_torch_function, name_called

_MOST_NODES, _MOST_ELEMENTS = 100, 4096  # a loop that counts in a tensor is cut after some iterations
_PROPERTIES = frozenset(("T", "H", "mT", "mH", "real", "imag"))
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)

# Comparison -> the numbers for which it is False for every draw of `torch.rand`, from 0 to 1.
_FALSE_FOR_DRAWS: dict[object, Callable[[float], bool]] = {
    operator.lt: lambda bound: bound <= 0,
    operator.le: lambda bound: bound < 0,
    operator.gt: lambda bound: bound >= 1,
    operator.ge: lambda bound: bound > 1,
}


def folded(node: torch.fx.Node, open_graphs: Iterable[torch.fx.Graph]) -> torch.Tensor | None:
    """Returns the tensor that a node computes.

    None if the tensor depends on an external value, on random numbers, or on memory that an open graph writes, or if
    the computation would take long. A comparison of random numbers is known if it is False for all of them."""
    if _is_false_for_all_draws(node, open_graphs):
        return torch.zeros(node.meta["example_value"].shape, dtype=torch.bool)
    needed = needed_nodes(node, _is_small)
    if needed is None or any(writes_to(graph, needed) for graph in open_graphs):
        return None
    return value_of(node, needed, {}, _has_same_metadata)


def value_of(
    node: torch.fx.Node,
    needed: Container[torch.fx.Node],
    known: Mapping[torch.fx.Node, Any],
    is_as_predicted: Callable[[torch.Tensor, torch.Tensor], bool],
) -> torch.Tensor | None:
    """Returns the tensor that a node computes from the `needed` nodes, some of which have a known value.

    None if a value is not as its fake tensor predicted."""
    values = dict(known)
    try:
        with torch.no_grad(), without_torch_function():
            for each in node.graph.nodes:
                if each not in needed or each in known:
                    continue
                values[each] = _computed(each, values)
                pairs = zip(leaves(values[each]), leaves(each.meta["example_value"]), strict=True)
                tensors = (pair for pair in pairs if isinstance(pair[1], torch.Tensor))
                if not all(is_as_predicted(*pair) for pair in tensors):  # settings have changed since
                    return None
    except Exception:  # any error: the graph raises it when it runs
        return None
    value: torch.Tensor = values[node]
    return value


def _is_false_for_all_draws(node: torch.fx.Node, open_graphs: Iterable[torch.fx.Graph]) -> bool:
    """Returns whether a node compares uniform draws with a number, with the answer False for every draw."""
    if node.target not in _FALSE_FOR_DRAWS or not _is_small(node.meta["example_value"]):
        return False
    draw, bound = node.args
    if not isinstance(draw, torch.fx.Node) or draw.target is not torch.rand or "out" in draw.kwargs:
        return False
    is_false = type(bound) in (int, float) and _FALSE_FOR_DRAWS[node.target](bound)  # type: ignore[arg-type]
    return is_false and not any(writes_to(graph, {node, draw}) for graph in open_graphs)


def needed_nodes(
    node: torch.fx.Node,
    is_allowed: Callable[[torch.Tensor], bool],
    is_known: Callable[[torch.fx.Node], bool] = lambda node: False,
) -> set[torch.fx.Node] | None:
    """Returns the node and all nodes it depends on, up to those that `is_known`.

    None if one of them does more than compute tensors from its arguments, or the fake tensors are not all
    `is_allowed`."""
    needed, pending = set[torch.fx.Node](), [node]
    while pending:
        each = pending.pop()
        if each in needed:
            continue
        is_leaf = is_known(each)
        if len(needed) == _MOST_NODES or not (is_leaf or _computes(each, is_allowed)):
            return None
        needed.add(each)
        pending += [] if is_leaf else each.all_input_nodes
    return needed


def _computes(node: torch.fx.Node, is_allowed: Callable[[torch.Tensor], bool]) -> bool:
    """Returns whether a node computes integers, or tensors that are all `is_allowed`, from nothing but its
    arguments."""
    if isinstance(node.meta.get("example_value"), (int, torch.SymInt)):
        return is_size(node) or node.target in _ARITHMETIC
    if "example_value" not in node.meta or node.meta.get("mutates") or node.meta.get("draws") or "out" in node.kwargs:
        return False
    tensors = [value for value in leaves(node.meta["example_value"]) if isinstance(value, torch.Tensor)]
    if not tensors or not all(map(is_allowed, tensors)):
        return False
    if node.target is getattr:
        return node.args[1] in _PROPERTIES
    is_function = node.op == "call_function" and not isinstance(node.target, type)
    is_of_torch = is_torch_function(node.target) or getattr(node.target, "__module__", "") in PYTHON_NAMESPACES
    name = name_called(node)
    return ((is_function and is_of_torch) or node.op == "call_method") and has_no_effect(name) and "empty" not in name


def is_size(node: torch.fx.Node) -> bool:
    """Returns whether a node reads the size of a dimension of a tensor."""
    return node.op == "call_method" and node.target == "size"


def _is_small(fake: torch.Tensor) -> bool:
    count = fake.numel()  # a symbol depends on an external size
    return fake.device.type == "cpu" and is_plain(fake) and type(count) is int and count <= _MOST_ELEMENTS


def is_plain(fake: torch.Tensor) -> bool:
    """Returns whether a tensor is strided, not quantized, and has no part in autograd."""
    return fake.layout is torch.strided and not fake.requires_grad and not fake.is_quantized


def writes_to(graph: torch.fx.Graph, needed: set[torch.fx.Node]) -> bool:
    """Returns whether the graph has written to the result of a needed node, through any view."""
    results = [value for node in needed for value in leaves(node.meta["example_value"])]
    memories = {memory_of(value) for value in results if isinstance(value, torch.Tensor)}
    writes = (node.meta["written_memory"] or (None,) for node in graph.nodes if node.meta.get("mutates"))
    return any(memory is None or memory in memories for written in writes for memory in written)


def _computed(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    return target(*args, **kwargs)


def _has_same_metadata(value: Any, predicted: Any) -> bool:
    """Returns whether a tensor has the metadata of another tensor."""
    return isinstance(value, torch.Tensor) and (
        (value.dtype, value.device, value.shape, value.stride())
        == (predicted.dtype, predicted.device, predicted.shape, predicted.stride())
    )
