"""Owns early reads: integers that Python reads from external tensors before the graph runs, because an operation needs
them as sizes. Vision models compute positions so: `for height, width in grid.tolist(): torch.arange(height)`.

Every `item()` and `tolist()` is captured in the graph first (`graph_numbers.py`). If an operation needs such a number
itself, the frame is traced again, and the read is early: the operations that compute the tensor from external integers
become a function of their own. Guards and the residual program call the function, and the numbers vary as external
integers do. Numbers in external tensors of one element are not here (`tensor_items.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.fx

from minidynamo import compat
from minidynamo.graph.boxed import make_boxed
from minidynamo.graph.marks import FROM_DATA
from minidynamo.graph.torch_settings import preserved, restore
from minidynamo.guards.source import Called, Constant, Item, Source, call_or_none, is_drawn
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import size_here
from minidynamo.tracer.graph.constant_folding import is_plain, is_size, needed_nodes, value_of
from minidynamo.tracer.lazy.facts import guard_no_shared_memory
from minidynamo.tracer.numbers.arithmetic import value_here
from minidynamo.variables.base import NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, SliceVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

# An external tensor or number that early reads depend on.
Root = TensorVariable | NumberVariable

_DEVICES = ("cpu", "cuda")
_LONGEST = 16  # of the lists whose length varies: each length has a version of its own
MOST_ITEMS = 64  # of a list, since each is a node of the graph or a guard
_MOST_ELEMENTS = 2**14  # of each tensor that is computed twice: for the numbers, and in the graph


class ReadsEarly(Exception):
    """Raised to trace the frame again with early reads at `positions`, as code objects and indices."""

    def __init__(self, positions: frozenset[tuple[CodeType, int]]) -> None:
        super().__init__(positions)
        self.positions = positions


def record(tx: Tracer, result: VariableTracker) -> None:
    """Records the position of the present read, whose `result` is a number of the graph or nested lists of them."""
    for item in _items([result]):
        for node in _reads(item.node):
            tx.data_reads.setdefault(node, _position(tx))


def request(tx: Tracer, args: Iterable[VariableTracker]) -> None:
    """Abandons the trace if all numbers of the graph in `args` can be read early."""
    reads = {read for item in _items(args) for read in _reads(item.node)}
    positions = {tx.data_reads.get(read) for read in reads}
    if reads and None not in positions and all(_needed(tx, read.args[0]) is not None for read in reads):
        _retrace(tx, {position for position in positions if position is not None})


def request_list(tx: Tracer, tensor: TensorVariable) -> None:
    """Abandons the trace if `tensor.tolist()`, whose length varies, can be read early."""
    if _is_short(tx, tensor.fake) and _needed(tx, tensor.node) is not None:
        _retrace(tx, {_position(tx)})


def _retrace(tx: Tracer, positions: set[tuple[CodeType, int]]) -> None:
    if positions.isdisjoint(tx.early_reads):
        raise ReadsEarly(frozenset(positions))


def read(tx: Tracer, tensor: TensorVariable, method: str) -> VariableTracker | None:
    """Returns what `tensor.tolist()`, or another `method`, reads; None if the read is not early."""
    is_early = _position(tx) in tx.early_reads and _is_short(tx, tensor.fake)
    needed = _needed(tx, tensor.node) if is_early else None
    if needed is None:
        return None
    for size in tensor.fake.shape:
        int(size)  # a list of another length has a version of its own
    nodes = filter(needed.__contains__, tensor.node.graph.nodes)
    roots = {node: root for node in nodes if (root := tx.graph.external(node)) is not None}
    tensors = [root for root in roots.values() if isinstance(root, TensorVariable) and _is_integer(root.fake)]
    written = tx.graph.written_tensors()
    if not all(guard_no_shared_memory(tx, tensor, written) for tensor in tensors):
        return None
    method = "tolist" if method == "tolist" else "item"
    with preserved():
        restore(tx.graph.entry_settings)  # the settings in which guards are checked
        known = {node: _here(tx, root) for node, root in roots.items()}
        value = value_of(tensor.node, needed, known, _has_same_dtype)
    values = None if value is None else call_or_none(getattr(value, method))
    if values is None:
        return None
    function = _function(tx, tensor.node, needed, roots, method)
    sources = tuple(root.source for root in roots.values() if root.source is not None)
    where = tx.location()
    name = "numbers" if where is None else f"numbers_of_line_{where.lineno}"
    source = Called(Constant(function, name), sources)
    varied = {each for each, value in _leaves(values, source) if tx.graph.shapes.varies(each, value)}

    def number(value: int, source: Source) -> VariableTracker:
        # Numbers of one list vary together. Like sizes, 0 and 1 are constants until they vary: fewer symbols.
        varies = source in varied or (varied and value not in (0, 1))
        return tx.graph.integer(value, source) if varies else tx.wrap(value, source)

    return _tracked(values, source, number)


def _here(tx: Tracer, root: Root) -> Any:
    """Returns the value of an external tensor or number in this call."""
    if isinstance(root, NumberVariable):
        return value_here(root)
    tx.graph.use(root)
    return tx.graph.real(root)


def _position(tx: Tracer) -> tuple[CodeType, int]:
    return tx.frames[-1].code, tx.frames[-1].index


def _items(args: Iterable[VariableTracker]) -> Iterator[ItemVariable]:
    """Yields the numbers of the graph among values, in slices and in nested lists."""
    for arg in args:
        if isinstance(arg, ItemVariable):
            yield arg
        elif isinstance(arg, SliceVariable):
            yield from _items((arg.start, arg.stop, arg.step))
        elif isinstance(arg, SequenceVariable):
            yield from _items(arg.items)


def _reads(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the nodes that read the numbers from which a node computes a number."""
    inputs = [each for each in node.all_input_nodes if FROM_DATA in each.meta]
    if not inputs:
        yield node
    for each in inputs:
        yield from _reads(each)


def _needed(tx: Tracer, node: Any) -> set[torch.fx.Node] | None:
    """Returns the nodes that compute a tensor from small external integer tensors, and from sizes of external tensors;
    None if it needs others."""

    def is_root(node: torch.fx.Node) -> bool:
        root = tx.graph.external(node)
        return root is not None and root.source is not None and not is_drawn(root.source)

    if tx.graph.subgraph is not None:
        return None
    needed = needed_nodes(node, _is_small, is_root)
    if needed is None or tx.graph.writes_to(needed):
        return None
    roots = [node for node in needed if is_root(node) and not _is_small_integer(node.meta["example_value"])]
    are_sizes = (is_size(user) for root in roots for user in root.users if user in needed)
    return needed if node not in roots and all(are_sizes) else None


def _is_small_integer(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (_is_small(value) and _is_integer(value))


def _is_small(fake: torch.Tensor) -> bool:
    return fake.device.type in _DEVICES and is_plain(fake) and size_here(fake.numel()) <= _MOST_ELEMENTS


def _is_short(tx: Tracer, fake: torch.Tensor) -> bool:
    """Returns whether a list of the numbers in a tensor may be read early."""
    varying = [size for size in fake.shape if type(size) is not int]
    is_declared = any(map(tx.graph.shapes.is_declared, varying))
    return (
        not is_declared
        and size_here(fake.numel()) <= MOST_ITEMS
        and max(map(size_here, varying), default=0) <= _LONGEST
    )


def _has_same_dtype(value: torch.Tensor, predicted: torch.Tensor) -> bool:
    """Returns whether a tensor has the dtype that it has in the graph, where autocast or the default dtype may
    differ."""
    return value.dtype is predicted.dtype


def _is_integer(fake: torch.Tensor) -> bool:
    return not fake.dtype.is_floating_point and not fake.dtype.is_complex


def _function(
    tx: Tracer, node: torch.fx.Node, needed: set[torch.fx.Node], roots: Iterable[torch.fx.Node], method: str
) -> Callable[..., Any]:
    """Returns a function from the values of `roots` to the result of a method of the tensor that `node` computes.
    Layers that compute the same share the function."""
    graph = torch.fx.Graph()
    copies = {root: graph.placeholder(f"root{position}") for position, root in enumerate(roots)}
    for each in node.graph.nodes:
        if each in needed and each not in copies:
            args, kwargs = torch.fx.map_arg((each.args, each.kwargs), copies.__getitem__)
            copies[each] = graph.create_node(each.op, each.target, args, kwargs)
    graph.output((copies[node],))
    known = tx.early_functions.get(text := f"{method} of {graph}")
    if known is not None:
        return known
    compute = make_boxed(compat.graph_module(torch.nn.Module(), graph), "numbers")

    def numbers(*values: Any) -> Any:
        with torch.no_grad(), compat.without_torch_function():
            return getattr(compute([*values])[0], method)()

    return tx.early_functions.setdefault(text, numbers)


def _leaves(values: Any, source: Source) -> Iterator[tuple[Source, int]]:
    """Yields each number in nested lists with its source."""
    if isinstance(values, list):
        for k, value in enumerate(values):
            yield from _leaves(value, Item(source, k))
    else:
        yield source, values


def _tracked(values: Any, source: Source, number: Callable[[int, Source], VariableTracker]) -> VariableTracker:
    if isinstance(values, list):
        return ListVariable([_tracked(value, Item(source, k), number) for k, value in enumerate(values)])
    return number(values, source)
