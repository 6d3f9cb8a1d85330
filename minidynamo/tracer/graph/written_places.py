"""Owns where a graph writes outside of itself: a small program that finds those places before the graph runs.

With what they hold, the graph can be taken back when it raises (`tracer/runtime/rollback.py`). The places are looked
for only where some operation of the graph may raise an error that hangs on data; which of them comes first is not
asked, since a backend may compute in another order than the program says. Where all that can go wrong is a position
that does not exist, a program as small looks at the positions first.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from minidynamo.compat import memory_of
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.pytree import leaves, nodes_in
from minidynamo.graph.version_counter import UNCOUNTED
from minidynamo.tracer.graph import dead_code
from minidynamo.tracer.graph.dead_code import is_of_torch
from minidynamo.tracer.graph.positions import Range, positions_of


@dataclass(frozen=True)
class Part:
    """Part of a tensor: how to copy what is there, and how to write it back."""

    read: Callable[..., Any]
    write: Callable[..., object]
    where: tuple[Any, ...]


def memory(tensor: torch.Tensor) -> Part:
    """All of a tensor's memory, whatever part of it the tensor shows."""
    return Part(lambda owner: owner.clone(), lambda owner, kept: owner.copy_(kept), (tensor.untyped_storage(),))


def subscript(tensor: torch.Tensor, key: Any) -> Part:
    """`tensor[key]`."""
    return _part(lambda tensor, key: tensor[key].clone(), operator.setitem, tensor, key)


def rows(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> Part:
    """The slices along `dim` whose positions are in `index`."""
    return _part(torch.index_select, torch.Tensor.index_copy_, tensor, dim, index)


def elements(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> Part:
    """The elements that `gather` reads."""
    return _part(torch.gather, torch.Tensor.scatter_, tensor, dim, index)


def _part(read: Callable[..., Any], write: Callable[..., object], tensor: torch.Tensor, *where: Any) -> Part:
    """Part of a tensor, or all of it where that is less to copy."""
    positions = sum(index.numel() for index in leaves(where) if isinstance(index, torch.Tensor))
    if positions >= tensor.numel():
        return Part(torch.clone, torch.Tensor.copy_, (tensor,))
    return Part(read, write, (tensor, *where))


# Operations that write to a part of their first argument, and how many of the next arguments say which.
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
# Operations behind which a tensor shows its memory in another way, or has other memory than when it came.
_LAYS_ANEW = {*_NAMES.split(), *UNCOUNTED}


@dataclass(frozen=True)
class Places:
    """Where a graph writes: the tensors from outside, and what of them is written: views as wholes, and parts. To those
    that are `moved` it gives other memory."""

    tensors: list[torch.Tensor]
    moved: list[torch.Tensor]
    wholes: list[torch.Tensor]
    parts: list[Part]


class Writes:
    """What a graph writes to outside, found by programs that take the graph's inputs at `positions`.

    `can_be_put_back`: data may make the graph raise, so it is found out which places are written. Otherwise there are
    only the tensors. `are_counted`: torch counts all writes that the graph does. `are_recorded`: autograd records one
    of them, which a graph that runs as it was captured cannot take back. The programs are compiled when they are first
    needed.
    """

    def __init__(self, finder: _Finder, *, can_be_put_back: bool) -> None:
        moved = finder.moved
        tensors = [node for node, where in finder.owners.items() if where in finder.written or node in moved]
        wholes, parts = finder.places() if can_be_put_back else ([], [])
        self.can_be_put_back = can_be_put_back
        self.are_counted = not moved and all(node.target not in UNCOUNTED for node in finder.by_node)
        self.are_recorded = finder.are_recorded()
        taken = finder.placeholders_of((tensors, wholes, [part.args for part in parts]))
        self.positions = [*taken.values()]
        self._precise = _graph_of(taken, Places, (tensors, moved, wholes, parts))
        if can_be_put_back:
            memories = [_Call(memory, (node,)) for node in tensors]
            self._safe = _graph_of(taken, Places, (tensors, moved, [], memories))

    @functools.cached_property
    def find(self) -> Callable[..., Places]:
        """The places, as narrow as they are known. Raises an error where a position does not exist."""
        return _compiled(self._precise)

    @functools.cached_property
    def find_memories(self) -> Callable[..., Places]:
        """The same, with all the memory of each tensor."""
        return _compiled(self._safe)


class Lookups:
    """The positions that a graph looks up, which are known before it runs; nothing else can make it raise."""

    def __init__(self, finder: _Finder, ranges: list[Range]) -> None:
        looked_up = [index for index, _, _ in ranges]
        taken = finder.placeholders_of(looked_up)
        self._ranges = [(first, end) for _, first, end in ranges]
        self._positions = [*taken.values()]
        self._graph = _graph_of(taken, tuple, (looked_up,))

    def exist(self, args: Sequence[Any]) -> bool:
        """Whether all positions exist, given the inputs of the graph, so that it will not raise."""
        with torch.inference_mode():
            try:
                found = self._find(*(args[k] for k in self._positions)) if self._ranges else ()
            except Exception:  # a position of positions does not exist, which is for the graph to say
                return False
            return all(_lies_in(tensor, *each) for tensor, each in zip(found, self._ranges))

    @functools.cached_property
    def _find(self) -> Callable[..., Sequence[torch.Tensor]]:
        return _compiled(self._graph)


def find_writes(
    root: torch.fx.GraphModule, fakes: Mapping[torch.fx.Node, torch.Tensor], *, may_raise: bool
) -> tuple[Writes | None, Lookups | None]:
    """The writes of a graph to memory from outside, if there are any, and the positions that it looks up, if they can
    be looked at before. `fakes` are the nodes of the tensors that come from there, each with the fake one that it has
    become by the end; `may_raise`: data may make the graph raise."""
    finder = _Finder(root, fakes)
    ranges = finder.positions() if may_raise else None
    writes = Writes(finder, can_be_put_back=may_raise) if finder.written or finder.moved else None
    return writes, None if ranges is None else Lookups(finder, ranges)


def _compiled(graph: torch.fx.Graph) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.fx.GraphModule({}, graph).forward
    return function


def _lies_in(positions: torch.Tensor, first: int, end: int) -> bool:
    if not positions.numel():
        return True
    least, most = positions.aminmax()
    return first <= least.item() and most.item() < end


@dataclass(frozen=True)
class _Call:
    """What makes a part, and the nodes and constants that it is called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def _graph_of(
    taken: Iterable[torch.fx.Node], function: Callable[..., Any], args: tuple[list[Any], ...]
) -> torch.fx.Graph:
    """A graph that takes some inputs of another one, and calls a function with lists of nodes and calls."""
    graph = torch.fx.Graph()
    copies = {node: graph.node_copy(node) for node in taken}

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node not in copies:
            for given in node.all_input_nodes:
                copy(given)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    def placed(value: Any) -> Any:
        if isinstance(value, _Call):
            return graph.call_function(value.function, torch.fx.map_arg(value.args, copy))
        return copy(value)

    graph.output(graph.call_function(function, tuple([*map(placed, values)] for values in args)))
    for node in graph.nodes:
        node.meta.clear()
    return graph


class _Finder:
    def __init__(self, root: torch.fx.GraphModule, fakes: Mapping[torch.fx.Node, torch.Tensor]) -> None:
        self.root = root
        self.fakes = fakes
        self.owners = {node: memory_of(fake) for node, fake in fakes.items()}
        self.outside = frozenset(self.owners.values())
        self.by_node = {node: self._written_by(node) & self.outside for node in root.graph.nodes}
        self.written = frozenset[object]().union(*self.by_node.values())
        self.foreseen: dict[torch.fx.Node, bool] = {}
        targets = [node.args[0] for node in root.graph.nodes if node.target is replace_data]
        # The tensors to which the graph gives other memory (`x.data = y`).
        self.moved = [node for node in dict.fromkeys(targets) if isinstance(node, torch.fx.Node) and node in fakes]
        # Whether tensors show all the time what they show when they come.
        self.stay = not self.moved and not any(node.target in _LAYS_ANEW for node in root.graph.nodes)

    def _written_by(self, node: torch.fx.Node) -> frozenset[object]:
        """The memory that a node writes to; what functions that are inputs of it write to, it does."""
        written = frozenset(node.meta.get("written_memory", ()))
        around = node.graph.owning_module
        modules = [getattr(around, str(given.target)) for given in node.all_input_nodes if given.op == "get_attr"]
        return written.union(*(self._written_by(inner) for module in modules for inner in module.graph.nodes))

    def places(self) -> tuple[list[torch.fx.Node], list[_Call]]:
        """What is written to, as narrow as it is known before the graph runs: views, and parts."""
        wholes: dict[torch.fx.Node, None] = {}
        parts: dict[str, _Call] = {node.name: _Call(memory, (node,)) for node in self.moved}
        for node, memories in self.by_node.items():
            targets = [given for given in node.all_input_nodes if self._memory(given) in memories]
            if self.stay and (part := self._part(node)) is not None:
                parts[repr(part)] = part
            elif self.stay and memories == {*map(self._memory, targets)} and all(map(self._is_foreseen, targets)):
                wholes |= dict.fromkeys(targets)
            else:
                owners = [owner for owner, where in self.owners.items() if where in memories]
                parts |= {owner.name: _Call(memory, (owner,)) for owner in owners}
        return [*wholes], [*parts.values()]

    def positions(self) -> list[Range] | None:
        """The positions that the graph looks up, if it is known before it runs which these are, and if it can raise
        for nothing else."""
        found: list[Range] = []
        if not self.stay:
            return None
        for node in filter(dead_code.may_raise, self.root.graph.nodes):
            ranges = positions_of(node)
            if ranges is None or not all(self._is_foreseen(index) for index, _, _ in ranges):
                return None
            if self._reads_written([index for index, _, _ in ranges]) or self._reads_own_target(node):
                return None
            found += ranges
        return found

    def are_recorded(self) -> bool:
        """Whether a tensor that is written to has a history by the end of the graph."""
        written = [fake for node, fake in self.fakes.items() if self.owners[node] in self.written]
        return any(fake.grad_fn is not None for fake in written)

    def _part(self, node: torch.fx.Node) -> _Call | None:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if not self.by_node[node] or name not in _PARTS:
            return None
        part, count = _PARTS[name]
        target, *where = node.args[: 1 + count]
        if len(where) < count or self.by_node[node] != {self._memory(target)}:
            return None
        foreseen = self._are_foreseen((target, where)) and not self._reads_written(where)
        return _Call(part, (target, *where)) if foreseen else None

    def _memory(self, node: Any) -> object:
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
        return self.owners.get(node) or (memory_of(value) if isinstance(value, torch.Tensor) else None)

    def _are_foreseen(self, args: Any) -> bool:
        """Whether arguments can be had before the graph runs, with little work: views, and positions."""
        return all(map(self._is_foreseen, nodes_in(args)))

    def _is_foreseen(self, node: torch.fx.Node) -> bool:
        if node not in self.foreseen:
            self.foreseen[node] = node.op == "placeholder" or self._can_be_had(node)
        return self.foreseen[node]

    def _can_be_had(self, node: torch.fx.Node) -> bool:
        computes = node.op == "call_method" or is_of_torch(node.target) or node.target is getattr
        if not computes or node.meta.get("mutates") or node.meta.get("draws"):
            return False
        if not self._are_foreseen((node.args, node.kwargs)):
            return False
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or self._memory(node) in self.outside:
            return True
        return not value.dtype.is_floating_point and not self._reads_written((node.args, node.kwargs))

    def _reads_own_target(self, node: torch.fx.Node) -> bool:
        """Whether an operation reads the memory that it writes to, which some refuse."""
        read, written = nodes_in((node.args[1:], node.kwargs)), self._written_by(node)
        return any(self._memory(given) in written for given in read)

    def _reads_written(self, args: Any) -> bool:
        """Whether the values of arguments are others when the graph comes to them."""
        return any(self._memory(node) in self.written for node in nodes_in(args))

    def placeholders_of(self, nodes: Any) -> dict[torch.fx.Node, int]:
        """The inputs of the root from which nodes are computed, each with its place."""
        pending = nodes_in(nodes)
        found: dict[torch.fx.Node, None] = {}
        while pending:
            node = pending.pop()
            if node not in found:
                found[node] = None
                pending += node.all_input_nodes
        return {node: k for k, node in enumerate(self.root.graph.find_nodes(op="placeholder")) if node in found}
