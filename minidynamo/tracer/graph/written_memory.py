"""Owns the search for the external memory that a graph writes: small programs find the memory before the graph runs.

The copy of the memory, and the rollback after an error, are not here (`tracer/runtime/rollback.py`). The programs exist
only if an operation of the graph may raise an error that depends on data, whether before or after the writes: a backend
may reorder operations. If positions out of range are the only possible errors, another small program checks the
positions before the graph runs. `dead_code.py` knows which operations may raise."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from minidynamo.compat import memory_of
from minidynamo.core.records import record
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.pytree import leaves, nodes_in
from minidynamo.graph.storage_resize import UNCOUNTED
from minidynamo.tracer.graph import dead_code
from minidynamo.tracer.graph.dead_code import is_torch_function, name_called


@record(frozen=True)
class Part:
    """A part of a tensor, with functions to copy it and to write it back."""

    #: read(*where) -> copy
    read: Callable[..., Any]
    #: write(*where, copy)
    write: Callable[..., object]
    #: the tensor, then the arguments that select the part
    where: tuple[Any, ...]


def whole_memory(tensor: torch.Tensor) -> Part:
    """Returns all of a tensor's memory, even if the tensor shows only a part of it."""
    return Part(lambda owner: owner.clone(), lambda owner, kept: owner.copy_(kept), (tensor.untyped_storage(),))


def subscript(tensor: torch.Tensor, key: Any) -> Part:
    """Returns the part `tensor[key]`."""
    return _part(lambda tensor, key: tensor[key].clone(), operator.setitem, tensor, key)


def rows(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> Part:
    """Returns the slices along `dim` at the positions in `index`."""
    return _part(torch.index_select, torch.Tensor.index_copy_, tensor, dim, index)


def elements(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> Part:
    """Returns the elements that `gather` reads."""
    return _part(torch.gather, torch.Tensor.scatter_, tensor, dim, index)


def _part(read: Callable[..., Any], write: Callable[..., object], tensor: torch.Tensor, *where: Any) -> Part:
    """Returns a part of a tensor, or the whole tensor if that is less to copy."""
    positions = sum(index.numel() for index in leaves(where) if isinstance(index, torch.Tensor))
    if positions >= tensor.numel():
        return Part(torch.clone, torch.Tensor.copy_, (tensor,))
    return Part(read, write, (tensor, *where))


# Operations that write to a part of their first argument -> (part, number of next arguments that select it).
_PARTS: dict[str, tuple[Callable[..., Part], int]] = {
    "setitem": (subscript, 1),
    "index_add_": (rows, 2),
    "index_copy_": (rows, 2),
    "index_fill_": (rows, 2),
    "index_reduce_": (rows, 2),
    "scatter_": (elements, 2),
    "scatter_add_": (elements, 2),
    "scatter_reduce_": (elements, 2),
}


_NAMES = "as_strided_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_"
# Operations after which a tensor shows different memory, or has a different layout.
_RELAYOUT = {*_NAMES.split(), *UNCOUNTED}


@record(frozen=True)
class WrittenMemory:
    """The external memory that a graph writes."""

    #: external tensors that are written or moved
    tensors: list[torch.Tensor]
    #: external tensors to which the graph assigns new memory
    moved: list[torch.Tensor]
    #: views of external tensors that are written completely
    views: list[torch.Tensor]
    #: parts that are written
    parts: list[Part]


class Writes:
    """The external writes of a graph, found by programs that take the graph's inputs at `positions`.

    The programs are compiled on first use."""

    def __init__(self, finder: _Finder, *, can_roll_back: bool) -> None:
        moved = finder.moved
        tensors = [node for node, where in finder.owners.items() if where in finder.written or node in moved]
        views, parts = finder.memory() if can_roll_back else ([], [])
        #: whether the written memory is known, because data may make the graph raise; otherwise the tensors are known
        self.can_roll_back = can_roll_back
        #: torch's version counters show all writes of the graph
        self.are_counted = not moved and all(node.target not in UNCOUNTED for node in finder.by_node)
        #: autograd records a write, which a graph that runs as captured cannot roll back
        self.are_recorded = finder.are_recorded()
        #: every tensor shows the same memory, in the same layout, throughout the graph
        self.layouts_stay = finder.layouts_stay
        #: positions of the results, in memory of their own, that depend on the contents of written memory
        self.dependent_results = finder.dependent_results()
        placeholders = finder.placeholders_of((tensors, views, [part.args for part in parts]))
        self.positions = [*placeholders.values()]
        self._narrow_memory = _graph_of(placeholders, WrittenMemory, (tensors, moved, views, parts))
        if can_roll_back:
            memories = [_Call(whole_memory, (node,)) for node in tensors]
            self._all_memory = _graph_of(placeholders, WrittenMemory, (tensors, moved, [], memories))

    @functools.cached_property
    def find(self) -> Callable[..., WrittenMemory]:
        """Returns a program that finds the written parts of tensors; it raises an error if a position does not
        exist."""
        return _compiled(self._narrow_memory)

    @functools.cached_property
    def find_all_memory(self) -> Callable[..., WrittenMemory]:
        """Returns a program that finds all memory of each written tensor; it raises no errors."""
        return _compiled(self._all_memory)


class Lookups:
    """The positions that a graph looks up, if known before the run; no other data can make the graph raise."""

    def __init__(self, finder: _Finder, ranges: list[Range]) -> None:
        looked_up = [index for index, _, _ in ranges]
        placeholders = finder.placeholders_of(looked_up)
        self._ranges = [(first, end) for _, first, end in ranges]
        self._positions = [*placeholders.values()]
        self._graph = _graph_of(placeholders, tuple, (looked_up,))

    def exist(self, args: Sequence[Any]) -> bool:
        """Returns whether all positions exist for these inputs, so that the graph will not raise."""
        with torch.inference_mode():
            try:
                tensors = self._find(*(args[k] for k in self._positions)) if self._ranges else ()
            except Exception:  # positions that are looked up by other positions do not exist; the graph will raise
                return False
            return all(_are_in_range(tensor, *each) for tensor, each in zip(tensors, self._ranges))

    @functools.cached_property
    def _find(self) -> Callable[..., Sequence[torch.Tensor]]:
        return _compiled(self._graph)


def find_writes(
    root: torch.fx.GraphModule, fakes: Mapping[torch.fx.Node, torch.Tensor], *, may_raise: bool
) -> tuple[Writes | None, Lookups | None]:
    """Returns the external writes of a graph, if any, and its lookups, if they can be checked before it runs.

    `fakes` has the nodes of external tensors with their fake tensors at the end of the graph; `may_raise`: data may
    make the graph raise."""
    finder = _Finder(root, fakes)
    ranges = finder.positions() if may_raise else None
    writes = Writes(finder, can_roll_back=may_raise) if finder.written or finder.moved else None
    return writes, None if ranges is None else Lookups(finder, ranges)


def _compiled(graph: torch.fx.Graph) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.fx.GraphModule({}, graph).forward
    return function


def _are_in_range(positions: torch.Tensor, first: int, end: int) -> bool:
    if not positions.numel():
        return True
    least, most = positions.aminmax()
    return first <= least.item() and most.item() < end


@record(frozen=True)
class _Call:
    """The call that makes a part, with nodes and constants as arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def _graph_of(
    placeholders: Iterable[torch.fx.Node], function: Callable[..., Any], args: tuple[list[Any], ...]
) -> torch.fx.Graph:
    """Returns a graph that takes some inputs of another graph, and calls a function with lists of nodes and calls."""
    graph = torch.fx.Graph()
    copies = {node: graph.node_copy(node) for node in placeholders}

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node not in copies:
            for operand in node.all_input_nodes:
                copy(operand)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    def copied(value: Any) -> Any:
        if isinstance(value, _Call):
            return graph.call_function(value.function, torch.fx.map_arg(value.args, copy))
        return copy(value)

    graph.output(graph.call_function(function, tuple([*map(copied, values)] for values in args)))
    for node in graph.nodes:
        node.meta.clear()
    return graph


class _Finder:
    def __init__(self, root: torch.fx.GraphModule, fakes: Mapping[torch.fx.Node, torch.Tensor]) -> None:
        self.root = root
        self.fakes = fakes
        self.owners = {node: memory_of(fake) for node, fake in fakes.items()}
        self.external = frozenset(self.owners.values())
        self.by_node = {node: self._written_by(node) & self.external for node in root.graph.nodes}
        self.written = frozenset[object]().union(*self.by_node.values())
        self.early_nodes: dict[torch.fx.Node, bool] = {}
        targets = [node.args[0] for node in root.graph.nodes if node.target is replace_data]
        # Tensors to which the graph assigns new memory (`x.data = y`).
        self.moved = [node for node in dict.fromkeys(targets) if isinstance(node, torch.fx.Node) and node in fakes]
        # Whether each tensor shows the same memory, in the same layout, throughout the graph.
        self.layouts_stay = not self.moved and not any(node.target in _RELAYOUT for node in root.graph.nodes)

    def _written_by(self, node: torch.fx.Node) -> frozenset[object]:
        """Returns the memory that a node writes to, directly or in a subgraph."""
        written = frozenset(node.meta.get("written_memory", ()))
        owner = node.graph.owning_module
        modules = [getattr(owner, str(operand.target)) for operand in node.all_input_nodes if operand.op == "get_attr"]
        return written.union(*(self._written_by(inner) for module in modules for inner in module.graph.nodes))

    def memory(self) -> tuple[list[torch.fx.Node], list[_Call]]:
        """Returns the written views and parts of tensors; all memory of a tensor if they are unknown before the graph
        runs."""
        views: dict[torch.fx.Node, None] = {}
        parts: dict[str, _Call] = {node.name: _Call(whole_memory, (node,)) for node in self.moved}
        for node, memories in self.by_node.items():
            targets = [operand for operand in node.all_input_nodes if self._memory(operand) in memories]
            if self.layouts_stay and (part := self._part(node)) is not None:
                parts[repr(part)] = part
            elif self.layouts_stay and memories == {*map(self._memory, targets)} and all(map(self._is_early, targets)):
                views |= dict.fromkeys(targets)
            else:
                owners = [owner for owner, where in self.owners.items() if where in memories]
                parts |= {owner.name: _Call(whole_memory, (owner,)) for owner in owners}
        return [*views], [*parts.values()]

    def positions(self) -> list[Range] | None:
        """Returns the positions that the graph looks up.

        None if a position is unknown before the graph runs, or if the graph can raise for other reasons."""
        found: list[Range] = []
        if not self.layouts_stay:
            return None
        for node in filter(dead_code.may_raise, self.root.graph.nodes):
            ranges = positions_of(node)
            if ranges is None or not all(self._is_early(index) for index, _, _ in ranges):
                return None
            if self._reads_written([index for index, _, _ in ranges]) or self._reads_own_target(node):
                return None
            found += ranges
        return found

    def are_recorded(self) -> bool:
        """Returns whether a written tensor has an autograd history at the end of the graph."""
        written = [fake for node, fake in self.fakes.items() if self.owners[node] in self.written]
        return any(fake.grad_fn is not None for fake in written)

    def dependent_results(self) -> frozenset[int]:
        """Returns the positions of the results, in memory of their own, that depend on written memory."""
        memories, dependent = {*self.written}, set()
        for node in self.root.graph.nodes:
            if any(operand in dependent or self._memory(operand) in memories for operand in node.all_input_nodes):
                dependent.add(node)
                memories |= self._written_by(node)
        results = nodes_in(self.root.graph.output_node().args)
        return frozenset(
            k for k, node in enumerate(results) if node in dependent and self._memory(node) not in self.written
        )

    def _part(self, node: torch.fx.Node) -> _Call | None:
        name = name_called(node)
        if not self.by_node[node] or name not in _PARTS:
            return None
        part, count = _PARTS[name]
        target, *where = node.args[: 1 + count]
        if len(where) < count or self.by_node[node] != {self._memory(target)}:
            return None
        is_early = self._are_early((target, where)) and not self._reads_written(where)
        return _Call(part, (target, *where)) if is_early else None

    def _memory(self, node: Any) -> object:
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
        return self.owners.get(node) or (memory_of(value) if isinstance(value, torch.Tensor) else None)

    def _are_early(self, args: Any) -> bool:
        """Returns whether arguments are cheap to compute before the graph runs: views, and positions."""
        return all(map(self._is_early, nodes_in(args)))

    def _is_early(self, node: torch.fx.Node) -> bool:
        if node not in self.early_nodes:
            self.early_nodes[node] = node.op == "placeholder" or self._is_computable_early(node)
        return self.early_nodes[node]

    def _is_computable_early(self, node: torch.fx.Node) -> bool:
        computes = node.op == "call_method" or is_torch_function(node.target) or node.target is getattr
        if not computes or node.meta.get("mutates") or node.meta.get("draws"):
            return False
        if not self._are_early((node.args, node.kwargs)):
            return False
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or self._memory(node) in self.external:
            return True
        return not value.dtype.is_floating_point and not self._reads_written((node.args, node.kwargs))

    def _reads_own_target(self, node: torch.fx.Node) -> bool:
        """Returns whether an operation reads the memory it writes to, which some operations refuse."""
        read, written = nodes_in((node.args[1:], node.kwargs)), self._written_by(node)
        return any(self._memory(operand) in written for operand in read)

    def _reads_written(self, args: Any) -> bool:
        """Returns whether the graph may change the values of arguments before it uses them."""
        return any(self._memory(node) in self.written for node in nodes_in(args))

    def placeholders_of(self, nodes: Any) -> dict[torch.fx.Node, int]:
        """Returns the inputs of the root that nodes depend on, with their positions."""
        pending = nodes_in(nodes)
        reached: dict[torch.fx.Node, None] = {}
        while pending:
            node = pending.pop()
            if node not in reached:
                reached[node] = None
                pending += node.all_input_nodes
        return {node: k for k, node in enumerate(self.root.graph.find_nodes(op="placeholder")) if node in reached}


_INTEGERS = (torch.int32, torch.int64)

Range = tuple[torch.fx.Node, int, int]
"""A tensor of positions, the first valid position, and the end of the valid positions (exclusive)."""


def positions_of(node: torch.fx.Node) -> list[Range] | None:
    """Returns the positions that must exist for an operation to raise nothing.

    None if that is unknown, or if errors depend on more than positions."""
    find = _FINDERS.get(name_called(node).rstrip("_"))
    try:
        ranges = None if find is None else find(*node.args, **node.kwargs)
    except (TypeError, AttributeError, IndexError, KeyError):  # called in an unusual way
        return None
    known = ranges is not None and all(_is_known(*each) for each in ranges)
    return ranges if known else None


def _is_known(index: Any, first: Any, end: Any) -> bool:
    return type(first) is int and type(end) is int and _value(index).dtype in _INTEGERS


def _value(node: Any) -> torch.Tensor:
    value = node.meta["example_value"]
    assert isinstance(value, torch.Tensor)
    return value


def _along(x: Any, dim: int, index: Any, *rest: Any, **named: Any) -> list[Range]:
    return [(index, 0, _value(x).shape[dim])]


def _embedding(index: Any, weight: Any, *rest: Any, **named: Any) -> list[Range]:
    return [(index, 0, _value(weight).shape[0])]


def _classes(x: Any, target: Any, *rest: Any, **named: Any) -> list[Range]:
    shape = _value(x).shape
    return [(target, 0, shape[1] if len(shape) > 1 else shape[0])]


def _subscript(x: Any, key: Any, *rest: Any) -> list[Range] | None:
    ranges, shape = [], _value(x).shape
    parts = key if isinstance(key, tuple) else (key,)
    for dim, part in enumerate(part for part in parts if part is not None):
        if isinstance(part, torch.fx.Node):
            if isinstance(part.meta["example_value"], torch.Tensor):
                ranges.append((part, -shape[dim], shape[dim]))
        elif not isinstance(part, int | slice) or isinstance(part, bool):
            return None
    return ranges


def _indices(x: Any, indices: Any, *rest: Any) -> list[Range] | None:
    return _subscript(x, tuple(indices))


def _quotient(x: Any, divisor: Any) -> list[Range] | None:
    return [] if type(divisor) is int and divisor else None


def _repeats(x: Any, repeats: Any, *rest: Any, **named: Any) -> list[Range] | None:
    return [] if type(repeats) is int else None


_FINDERS: dict[str, Callable[..., list[Range] | None]] = {
    **dict.fromkeys(("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"), _along),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _along),
    **dict.fromkeys(("getitem", "setitem"), _subscript),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _classes),
    **dict.fromkeys(("floordiv", "floor_divide", "mod", "remainder"), _quotient),
    "embedding": _embedding,
    "repeat_interleave": _repeats,
    "index_put": _indices,
}
