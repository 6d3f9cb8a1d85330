"""Owns the graphs of parts of a backward: as in eager, gradients that are not requested are not computed.

`autograd.grad(y, [x])` requests a single gradient, and a program may use only some results. `graph_node.py` chooses the
part; nothing is compiled here. A part also records tangents with unusual strides, such as a single repeated number from
`y.sum()`. The graph reads such tangents without a copy, and the gradients get the layouts that they have in eager
(`autograd/layout/dim_order.py`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import tangent_dependent
from minidynamo.autograd.graph.graph_builder import fake
from minidynamo.autograd.graph.numbers import is_dense_in, is_number, is_symbolic, key, keys
from minidynamo.autograd.graph.signature import NO_GRAPH, NodeGraph
from minidynamo.autograd.graph.varying_strides import order_of
from minidynamo.autograd.layout.dim_order import empty_as, laid_out, restride_tangents
from minidynamo.autograd.partition.partition import backward_graph
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.graph.marks import IN_STEPS, USERS_BACKWARD
from minidynamo.graph.unbacked_symints import hint_of

aten = torch.ops.aten

Readers: TypeAlias = Sequence[tuple[int, ...]]
"""Per saved tensor: the targets that need it; () for all (see `NodeGraph`)."""

# Arguments that choose the gradients that an operator computes.
_MASKS = frozenset(("output_mask", "grad_input_mask"))


@record(frozen=True)
class BackwardPart:
    """Names a part of a backward graph."""

    #: Indices of differentiable results without a tangent.
    unused: frozenset[int] = frozenset()
    #: Indices of gradients that are not requested.
    unwanted: frozenset[int] = frozenset()
    #: Pairs (index, strides) of tangents with strides unlike the result; with symbolic sizes, ranks of dimensions.
    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: Whether tangents already include the flow between results, so that the graph must not add it again.
    cut: bool = False
    #: Whether to return the gradients that flow from results to their direct inputs, instead of the gradients of
    #: inputs.
    returns_flow: bool = False

    @property
    def stage(self) -> str:
        """The name of its compiled graph."""
        indices = {"results unused": self.unused, "gradients unwanted": self.unwanted}
        left_out = (f"{what}: {' '.join(map(str, sorted(found)))}" for what, found in indices.items() if found)
        kind = "cut at results" if self.cut else "arriving at results" if self.returns_flow else ""
        strides = f"strides: {dict(self.strides)}" if self.strides else ""
        return ", ".join(filter(None, ("backward", kind, *left_out, strides)))


WHOLE = BackwardPart()


def part_of(gm: fx.GraphModule, saved: int, part: BackwardPart, record: NodeGraph = NO_GRAPH) -> fx.GraphModule:
    """Builds the graph of a part of the backward graph `gm`, whose arguments are `saved` values of forward, then
    tangents.

    The whole is a copy, free for the compiler to change. A part takes the same arguments, with two exceptions: the
    tangent of an unused result is a single expanded zero, and a value that only unused results need is an empty tensor.
    A part returns None for unwanted and absent gradients. `record` comes from the signature.
    """
    part_graph = compat.graph_module(torch.nn.Module(), _graph_of_part(gm, saved, part, record))
    part_graph.meta[IN_STEPS] = bool(record.stages)
    return part_graph


def _graph_of_part(gm: fx.GraphModule, saved: int, part: BackwardPart, record: NodeGraph) -> fx.Graph:
    graph = fx.Graph()
    gradients: Any = graph.graph_copy(gm.graph, {})
    output = graph.output(gradients)
    if part == WHOLE:
        return graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    saved_inputs, tangents = inputs[:saved], inputs[saved:]
    if part.cut or part.returns_flow:
        nodes = [*graph.nodes]
        _cut(
            output,
            {nodes[number]: tangents[index] for index, number in record.gradients.items()},
            returns_flow=part.returns_flow,
        )
    unused = [tangents[index] for index in sorted(part.unused)]
    absent = _remove_absent(graph, tangents, part.unused, tangent_dependent(graph, {*saved_inputs}))
    for tangent in unused:
        _materialize_on_read(graph, tangent)
    restride_tangents(graph, {tangents[index]: strides for index, strides in part.strides})
    results: Any = output.args[0]
    wanted = [None if index in part.unwanted or node in absent else node for index, node in enumerate(results)]
    part_graph = backward_graph(
        graph, saved_inputs, tangents, wanted, tangent_dependent(graph, {*saved_inputs, *unused})
    )
    for node in part_graph.nodes:
        _narrow_output_mask(node)
    for node, indices in zip(part_graph.nodes, record.readers):
        if indices and part.unused.issuperset(indices):
            assert not node.users, f"{node} was kept for results that are not used"
            node.meta["val"] = node.meta["val"].new_empty(0)
    return part_graph


def _cut(output: fx.Node, result_gradients: Mapping[fx.Node, fx.Node], *, returns_flow: bool) -> None:
    """Replaces computed gradients of results by tangents. With `returns_flow`, makes the graph return the computed
    gradients."""
    if returns_flow:
        output.args = (tuple(result_gradients),)
    for computed, tangent in result_gradients.items():
        for user in [*computed.users]:
            if user is not output or not returns_flow:
                user.replace_input_with(computed, tangent)


def results_reading(graph: fx.Graph, saved: int) -> list[tuple[int, ...]]:
    """Returns, per saved value, the indices of the results whose backward reads the value; () for a value that the
    backward of every result reads, or of none."""
    inputs = graph.find_nodes(op="placeholder")
    saved_inputs, tangents = inputs[:saved], inputs[saved:]
    dependent = tangent_dependent(graph, {*saved_inputs})
    used, size_aliases = _used_for(graph, tangents, dependent), _size_aliases(graph)
    sizes = _sizes(graph, size_aliases)
    read: dict[fx.Node, int] = {}
    # Per node: results for which the node is computed from zeros, although it does not depend on their tangents.
    from_zeros: dict[fx.Node, int] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            read.update({gradient: used.get(gradient, _ALWAYS) for gradient in node.all_input_nodes})
        elif node in read:
            needed = used[node] | from_zeros.get(node, 0) if node in used else read[node]
            for source in node.all_input_nodes:
                read[source] = read.get(source, 0) | needed
                if source in used and node in used:
                    extra = (
                        0 if _is_removable(source, node, dependent, sizes, size_aliases) else used[node] & ~used[source]
                    )
                    from_zeros[source] = from_zeros.get(source, 0) | from_zeros.get(node, 0) | extra
    all_bits = (2 << len(tangents)) - 2
    results = [read.get(node, 0) for node in saved_inputs]
    results = [0 if bits & _ALWAYS or bits == all_bits else bits for bits in results]
    return [tuple(index for index in range(len(tangents)) if bits & 2 << index) for bits in results]


Sizes: TypeAlias = Mapping[Any, tuple[fx.Node, int | None]]
"""Origin of varying numbers, by key: the node of the number, or a tensor and a dimension."""

Names: TypeAlias = Mapping[Any, Any]
"""Keys of sizes, by the keys of equal sizes."""

# Operators with the result's shape as an argument.
_SHAPED = frozenset((aten.view.default, aten._unsafe_view.default, aten.reshape.default))

# Results as bits; bit 0 marks nodes that are computed whichever results are used.
_ALWAYS = 1


def _used_for(graph: fx.Graph, tangents: Sequence[fx.Node], dependent: set[fx.Node]) -> dict[fx.Node, int]:
    """Returns, as bits, the results whose tangents each node of `dependent` is computed from. If none of these results
    is used, the node is absent.

    A backward that the user wrote is not called if all its arguments are absent; otherwise absent arguments are zeros,
    and all of its results count as used.
    """
    arguments_of_call: dict[str, set[fx.Node]] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            call = node.meta.get(USERS_BACKWARD)
            if call is not None and source in dependent and source.meta.get(USERS_BACKWARD) != call:
                arguments_of_call.setdefault(call, set()).add(source)
    used = {tangent: 2 << index for index, tangent in enumerate(tangents)}
    for node in graph.nodes:
        if node.op != "call_function" or is_number(node) or node not in dependent:
            continue
        call = node.meta.get(USERS_BACKWARD)
        dependent_sources = _tangent_arguments(node, dependent) if call is None else arguments_of_call.get(call, ())
        used[node] = (
            functools.reduce(operator.or_, (used.get(source, _ALWAYS) for source in dependent_sources), 0) or _ALWAYS
        )
    return used


def _tangent_arguments(node: fx.Node, dependent: set[fx.Node]) -> list[fx.Node]:
    return [source for source in node.all_input_nodes if source in dependent and not is_number(source)]


def _summands(node: fx.Node, dependent: set[fx.Node], size_aliases: Names) -> list[fx.Node]:
    """Returns the two summands of a sum of gradients, if either may replace the sum; else an empty list."""
    if node.target is not aten.add.Tensor or node.kwargs or USERS_BACKWARD in node.meta:
        return []
    dependent_sources = _tangent_arguments(node, dependent)
    return (
        dependent_sources
        if len(dependent_sources) == 2
        and all(_has_sizes_of(source, node, size_aliases) for source in dependent_sources)
        else []
    )


def _has_sizes_of(summand: fx.Node, total: fx.Node, size_aliases: Names) -> bool:
    """Returns whether a summand has the shape of the sum in every call."""
    value, sum_value = summand.meta["val"], total.meta["val"]
    if (value.dtype, value.layout, value.dim()) != (sum_value.dtype, sum_value.layout, sum_value.dim()):
        return False
    pairs = zip(value.shape, sum_value.shape)
    return _layout(summand, size_aliases)[0] == _layout(total, size_aliases)[0] or all(
        # Layout only: an addition has compared sizes with different symbols, so equality in this call is a guard.
        hint_of(a) == hint_of(b) and is_symbolic(a) == is_symbolic(b)
        for a, b in pairs
    )


def _is_removable(source: fx.Node, node: fx.Node, dependent: set[fx.Node], sizes: Sizes, size_aliases: Names) -> bool:
    """Returns whether `node` can be computed without an absent gradient."""
    summands = _summands(node, dependent, size_aliases)
    return source.op != "placeholder" and (bool(summands) or _can_make_zeros(source.meta["val"], sizes))


def _size_aliases(graph: fx.Graph) -> Names:
    """Maps sizes passed to view operations to the equal sizes that torch computes for their results."""
    aliases: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.target in _SHAPED:
            shape: Any = fake(node.args[1])
            pairs = zip(node.meta["val"].shape, shape)
            aliases.update(
                (key(computed), key(size)) for computed, size in pairs if is_symbolic(computed) and key(size) != -1
            )
    return aliases


def _sizes(graph: fx.Graph, size_aliases: Names, first: Sequence[fx.Node] = ()) -> Sizes:
    """Returns origins of varying numbers: graph inputs, or sizes of graph inputs, preferring the `first` inputs."""
    sizes: dict[Any, tuple[fx.Node, int | None]] = {}
    inputs = graph.find_nodes(op="placeholder")
    for node in (*filter(is_number, inputs), *first, *inputs):
        value = node.meta["val"]
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        for size, dim in ((value, None),) if is_number(node) else zip(shape, range(len(shape))):
            sizes.setdefault(key(size), (node, dim))
    by_alias = [(size, sizes[name]) for size, name in size_aliases.items() if name in sizes]
    return {**dict(by_alias), **sizes}


def _can_make_zeros(value: Any, sizes: Sizes) -> bool:
    """Returns whether zeros like `value` can be made from known sizes alone, since the layout has no gaps."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    has_known_sizes = all(not is_symbolic(size) or key(size) in sizes for size in value.shape)
    return has_known_sizes and is_dense_in(order_of(value), value.shape, value.stride())


def _remove_absent(
    graph: fx.Graph, tangents: Sequence[fx.Node], unused: Collection[int], dependent: set[fx.Node]
) -> set[fx.Node]:
    """Removes and returns the nodes that depend only on tangents of `unused` results; eager does not compute them
    either.

    An absent summand is dropped; any further use of an absent gradient becomes zeros. `dependent` are the nodes that
    depend on tangents.
    """
    bits = sum(2 << index for index in unused)
    size_aliases = _size_aliases(graph)
    sizes = _sizes(graph, size_aliases, [tangents[index] for index in unused])
    absent = {node for node, used in _used_for(graph, tangents, dependent).items() if not used & ~bits}
    for node in graph.nodes:
        missing = [source for source in _tangent_arguments(node, dependent) if source in absent]
        if node.op != "call_function" or node in absent or is_number(node) or not missing:
            continue
        if summands := _summands(node, dependent, size_aliases):
            (present,) = (source for source in summands if source not in absent)
            node.replace_all_uses_with(present, delete_user_cb=lambda user: user.op == "output")  # in any layout
            if node.users and _layout(present, size_aliases) != _layout(node, size_aliases):
                with graph.inserting_before(node):
                    present = laid_out(graph, present, node.meta["val"])
                dependent.add(present)
            node.replace_all_uses_with(present)
            continue
        for source in missing:
            if _is_removable(source, node, dependent, sizes, size_aliases):
                with graph.inserting_before(node):
                    node.replace_input_with(source, _zeros(graph, source.meta["val"], sizes))
    return absent


def _zeros(graph: fx.Graph, like: torch.Tensor, sizes: Sizes) -> fx.Node:
    """Appends zeros with the layout and the known sizes of `like`."""
    facts: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
    zero = graph.call_function(aten.full.default, ([], 0), facts)
    zero.meta["val"] = empty_as(like, (), ())
    expanded = graph.call_function(aten.expand.default, (zero, [_size(graph, size, sizes) for size in like.shape]))
    expanded.meta["val"] = empty_as(like, range(like.ndim), [0] * like.ndim)
    return laid_out(graph, expanded, like)


def _size(graph: fx.Graph, size: Any, sizes: Sizes) -> int | fx.Node:
    """Returns a size as an argument: a node if it varies."""
    if not is_symbolic(size):
        return int(size)
    node, dim = sizes[key(size)]
    if dim is None:
        return node
    computed = graph.call_function(aten.sym_size.int, (node, dim))
    computed.meta["val"] = size
    return computed


def _layout(node: fx.Node, size_aliases: Names) -> Any:
    value = node.meta["val"]

    def names(sizes: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(size_aliases.get(size, size) for size in keys(sizes))

    strides = names(value.stride()) if value.layout is torch.strided else ()
    return (value.dtype, value.layout, names(value.shape)), strides


def _materialize_on_read(graph: fx.Graph, tangent: fx.Node) -> None:
    """Replaces reads of an expanded tangent by reads of a dense copy, made before the first read. A tangent that is
    only returned stays expanded."""
    like = tangent.meta["val"]
    users = {user for user in tangent.users if user.op != "output"}
    first = next((node for node in graph.nodes if node in users), None)
    if first is not None:
        with graph.inserting_before(first):
            dense = laid_out(graph, tangent, like)
        for user in users:
            user.replace_input_with(tangent, dense)
    tangent.meta["val"] = empty_as(like, range(like.ndim), [0] * like.ndim)


def _narrow_output_mask(node: fx.Node) -> None:
    """Makes an operator that can compute several gradients compute only the gradients that are read."""
    if not isinstance(node.target, OpOverload):
        return
    names = [argument.name for argument in compat.schema_of(node.target).arguments[: len(node.args)]]
    for index in (index for index, name in enumerate(names) if name in _MASKS):
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        requested: Any = node.args[index]
        mask = [is_requested and i in read for i, is_requested in enumerate(requested)]
        node.update_arg(index, mask)
        node.meta["val"] = tuple(value if is_requested else None for value, is_requested in zip(node.meta["val"], mask))
