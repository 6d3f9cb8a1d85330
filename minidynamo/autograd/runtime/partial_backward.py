"""Owns backward graphs for a part of what backward can compute: what nobody takes is left out, as in eager.

`autograd.grad(y, [x])` takes one gradient of many, and of several results a program may use one. Which part that is, is
found out in `graph_call.py`; nothing is compiled here. A graph also knows which gradients come in with other strides
than the results that they are gradients of: as one number repeated, say, as `y.sum()` hands them in. They are read as
they lie, and so are laid out then, as in eager, the gradients that are computed (`autograd/layout/dim_order.py`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import tangent_dependent
from minidynamo.autograd.graph.graph_builder import fake
from minidynamo.autograd.graph.numbers import is_dense_in, is_number, is_symbolic, key, keys
from minidynamo.autograd.graph.provenance import USERS_BACKWARD
from minidynamo.autograd.graph.varying_strides import order_of
from minidynamo.autograd.layout.dim_order import empty_as, laid_out, lay_out_anew
from minidynamo.autograd.partition.partition import backward_graph
from minidynamo.compat import OpOverload
from minidynamo.graph.unbacked_symints import hint_of

aten = torch.ops.aten

KeptFor: TypeAlias = Sequence[tuple[int, ...]]
"""For each value that forward has saved the results that it is kept for, by their positions; () for all of them."""

# Arguments of operators that compute several gradients: which of them.
_MASKS = frozenset(("output_mask", "grad_input_mask"))


@dataclass(frozen=True)
class Part:
    """What is left out of backward: `unused` are the positions of results that no gradient comes in for, counted among
    the differentiable ones; `unwanted` those of gradients that nobody takes. `strides` are those of gradients that have
    others than the result. With `cut`, what comes in for results that others are computed from has all that arrives
    there: nothing else flows on. `arriving` is what comes there from results that use them, with no other between,
    instead of the gradients."""

    unused: frozenset[int] = frozenset()
    unwanted: frozenset[int] = frozenset()
    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    cut: bool = False
    arriving: bool = False

    @property
    def stage(self) -> str:
        """The name of its compiled graph among those that are kept."""
        places = {"results unused": self.unused, "gradients unwanted": self.unwanted}
        left_out = (f"{what}: {' '.join(map(str, sorted(found)))}" for what, found in places.items() if found)
        kind = "cut at results" if self.cut else "arriving at results" if self.arriving else ""
        strides = f"strides: {dict(self.strides)}" if self.strides else ""
        return ", ".join(filter(None, ("backward", kind, *left_out, strides)))


WHOLE = Part()


def part_of(
    gm: fx.GraphModule, saved: int, part: Part, kept_for: KeptFor = (), arrivals: Sequence[tuple[int, int]] = ()
) -> fx.GraphModule:
    """The graph of a part of the backward graph `gm`, which takes so many values that forward has saved, then tangents.

    The whole is a copy: whoever compiles it may change it. A part takes the same inputs, but for each unused result one
    zero that is expanded to the shape of its gradient, and something empty for each value that was kept for unused
    results alone, as `kept_for` says; in the places of gradients that are unwanted, or nothing, it returns None.
    `arrivals` are those of the signature.
    """
    graph = fx.Graph()
    gradients: Any = graph.graph_copy(gm.graph, {})
    output = graph.output(gradients)
    if part == WHOLE:
        return compat.graph_module(torch.nn.Module(), graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    kept, tangents = inputs[:saved], inputs[saved:]
    if part.cut or part.arriving:
        nodes = [*graph.nodes]
        _cut(output, {nodes[index]: tangents[place] for place, index in arrivals}, arriving=part.arriving)
    unused = [tangents[place] for place in sorted(part.unused)]
    nothing = _leave_out(graph, tangents, part.unused, tangent_dependent(graph, {*kept}))
    for tangent in unused:
        _read_expanded(graph, tangent)
    lay_out_anew(graph, {tangents[place]: strides for place, strides in part.strides})
    results: Any = output.args[0]
    wanted = [None if place in part.unwanted or node in nothing else node for place, node in enumerate(results)]
    made = backward_graph(graph, kept, tangents, wanted, tangent_dependent(graph, {*kept, *unused}))
    for node in made.nodes:
        _compute_what_is_read(node)
    for node, places in zip(made.nodes, kept_for):
        if places and part.unused.issuperset(places):
            assert not node.users, f"{node} was kept for results that are not used"
            node.meta["val"] = node.meta["val"].new_empty(0)
    return compat.graph_module(torch.nn.Module(), made)


def _cut(output: fx.Node, arrivals: Mapping[fx.Node, fx.Node], *, arriving: bool) -> None:
    """Let tangents take the places of `arrivals` at results, which are returned if they are asked for."""
    if arriving:
        output.args = (tuple(arrivals),)
    for arrival, tangent in arrivals.items():
        for user in [*arrival.users]:
            if user is not output or not arriving:
                user.replace_input_with(arrival, tangent)


def read_for(graph: fx.Graph, saved: int) -> list[tuple[int, ...]]:
    """For each value that forward has saved the results, counted among the differentiable ones, for whose gradients a
    part of the backward `graph` reads it; () for all, and for a value that it does not read."""
    inputs = graph.find_nodes(op="placeholder")
    kept, tangents = inputs[:saved], inputs[saved:]
    behind = tangent_dependent(graph, {*kept})
    used, called = _used_for(graph, tangents, behind), _called(graph)
    sizes = _sizes(graph, called)
    read: dict[fx.Node, int] = {}
    # By node the results for which it is computed, of zeros, though it comes from none of them.
    idle: dict[fx.Node, int] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            read.update({gradient: used.get(gradient, _ALWAYS) for gradient in node.all_input_nodes})
        elif node in read:
            needed = used[node] | idle.get(node, 0) if node in used else read[node]
            for source in node.all_input_nodes:
                read[source] = read.get(source, 0) | needed
                if source in used and node in used:
                    more = 0 if _is_left_out(source, node, behind, sizes, called) else used[node] & ~used[source]
                    idle[source] = idle.get(source, 0) | idle.get(node, 0) | more
    everything = (2 << len(tangents)) - 2
    found = [read.get(node, 0) for node in kept]
    found = [0 if bits & _ALWAYS or bits == everything else bits for bits in found]
    return [tuple(place for place in range(len(tangents)) if bits & 2 << place) for bits in found]


Sizes: TypeAlias = Mapping[Any, tuple[fx.Node, int | None]]
"""Where numbers that vary are found, by their keys: a node that is one, or a tensor and its dimension."""

Names: TypeAlias = Mapping[Any, Any]
"""Keys of sizes by the keys of others that are the same."""

# What makes views of the sizes that it is given.
_SHAPED = frozenset((aten.view.default, aten._unsafe_view.default, aten.reshape.default))

# Results as bits: the first stands for what is computed whichever of them is used.
_ALWAYS = 1


def _used_for(graph: fx.Graph, tangents: Sequence[fx.Node], behind: set[fx.Node]) -> dict[fx.Node, int]:
    """The results whose gradients each node of `behind` comes from: it is nothing if none of them is used.

    A backward that the user wrote is not called for nothing alone; otherwise it gets zeros, and may compute anything.
    """
    given: dict[str, set[fx.Node]] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            call = node.meta.get(USERS_BACKWARD)
            if call is not None and source in behind and source.meta.get(USERS_BACKWARD) != call:
                given.setdefault(call, set()).add(source)
    used = {tangent: 2 << place for place, tangent in enumerate(tangents)}
    for node in graph.nodes:
        if node.op != "call_function" or is_number(node) or node not in behind:
            continue
        call = node.meta.get(USERS_BACKWARD)
        late = _late(node, behind) if call is None else given.get(call, ())
        used[node] = functools.reduce(operator.or_, (used.get(source, _ALWAYS) for source in late), 0) or _ALWAYS
    return used


def _late(node: fx.Node, behind: set[fx.Node]) -> list[fx.Node]:
    return [source for source in node.all_input_nodes if source in behind and not is_number(source)]


def _summands(node: fx.Node, behind: set[fx.Node], called: Names) -> list[fx.Node]:
    """The two gradients whose sum `node` is, each of which can take its place; empty if it is no such sum."""
    if node.target is not aten.add.Tensor or node.kwargs or USERS_BACKWARD in node.meta:
        return []
    late = _late(node, behind)
    return late if len(late) == 2 and all(_has_sizes_of(source, node, called) for source in late) else []


def _has_sizes_of(summand: fx.Node, total: fx.Node, called: Names) -> bool:
    """Whether a summand is as large as the sum in every call. Sizes that torch calls differently it has compared."""
    one, other = summand.meta["val"], total.meta["val"]
    if (one.dtype, one.layout, one.dim()) != (other.dtype, other.layout, other.dim()):
        return False
    pairs = zip(one.shape, other.shape)
    return _layout(summand, called)[0] == _layout(total, called)[0] or all(
        # Layout only: an addition has compared sizes with different symbols, so equality in this call is a guard.
        hint_of(a) == hint_of(b) and is_symbolic(a) == is_symbolic(b)
        for a, b in pairs
    )


def _is_left_out(source: fx.Node, node: fx.Node, behind: set[fx.Node], sizes: Sizes, called: Names) -> bool:
    """Whether `node`, when it is computed, can do without a gradient that is nothing."""
    summands = _summands(node, behind, called)
    return source.op != "placeholder" and (bool(summands) or _is_plain(source.meta["val"], sizes))


def _called(graph: fx.Graph) -> Names:
    """What sizes of views are asked for as, by what torch works out for them: the two are equal in every call."""
    found: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.target in _SHAPED:
            asked: Any = fake(node.args[1])
            pairs = zip(node.meta["val"].shape, asked)
            found.update((key(made), key(size)) for made, size in pairs if is_symbolic(made) and key(size) != -1)
    return found


def _sizes(graph: fx.Graph, called: Names, first: Sequence[fx.Node] = ()) -> Sizes:
    """Numbers that vary: inputs of a graph, or sizes of inputs, of the `first` ones where these have them."""
    found: dict[Any, tuple[fx.Node, int | None]] = {}
    inputs = graph.find_nodes(op="placeholder")
    for node in (*filter(is_number, inputs), *first, *inputs):
        value = node.meta["val"]
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        for size, dim in ((value, None),) if is_number(node) else zip(shape, range(len(shape))):
            found.setdefault(key(size), (node, dim))
    known = [(size, found[name]) for size, name in called.items() if name in found]
    return {**dict(known), **found}


def _is_plain(value: Any, sizes: Sizes) -> bool:
    """Whether zeros like `value` can be made of nothing else: its sizes are known, and it has no gaps."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    known = all(not is_symbolic(size) or key(size) in sizes for size in value.shape)
    return known and is_dense_in(order_of(value), value.shape, value.stride())


def _leave_out(
    graph: fx.Graph, tangents: Sequence[fx.Node], unused: Collection[int], behind: set[fx.Node]
) -> set[fx.Node]:
    """Leave out, and return, what comes from gradients of `unused` results alone, which eager does not compute either:
    summands are dropped, what else is joined with other gradients becomes zeros. `behind` is what is computed from
    gradients."""
    bits = sum(2 << place for place in unused)
    called = _called(graph)
    sizes = _sizes(graph, called, [tangents[place] for place in unused])
    nothing = {node for node, used in _used_for(graph, tangents, behind).items() if not used & ~bits}
    for node in graph.nodes:
        lacking = [source for source in _late(node, behind) if source in nothing]
        if node.op != "call_function" or node in nothing or is_number(node) or not lacking:
            continue
        if summands := _summands(node, behind, called):
            (rest,) = (source for source in summands if source not in nothing)
            node.replace_all_uses_with(rest, delete_user_cb=lambda user: user.op == "output")  # in whatever layout
            if node.users and _layout(rest, called) != _layout(node, called):
                with graph.inserting_before(node):
                    rest = laid_out(graph, rest, node.meta["val"])
                behind.add(rest)
            node.replace_all_uses_with(rest)
            continue
        for source in lacking:
            if _is_left_out(source, node, behind, sizes, called):
                with graph.inserting_before(node):
                    node.replace_input_with(source, _zeros(graph, source.meta["val"], sizes))
    return nothing


def _zeros(graph: fx.Graph, like: torch.Tensor, sizes: Sizes) -> fx.Node:
    """Zeros in the layout of `like`, whose sizes are known."""
    facts: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
    zero = graph.call_function(aten.full.default, ([], 0), facts)
    zero.meta["val"] = empty_as(like, (), ())
    expanded = graph.call_function(aten.expand.default, (zero, [_size(graph, size, sizes) for size in like.shape]))
    expanded.meta["val"] = empty_as(like, range(like.ndim), [0] * like.ndim)
    return laid_out(graph, expanded, like)


def _size(graph: fx.Graph, size: Any, sizes: Sizes) -> int | fx.Node:
    """A size as an argument: a node, if it varies."""
    if not is_symbolic(size):
        return int(size)
    node, dim = sizes[key(size)]
    if dim is None:
        return node
    made = graph.call_function(aten.sym_size.int, (node, dim))
    made.meta["val"] = size
    return made


def _layout(node: fx.Node, called: Names) -> Any:
    value = node.meta["val"]

    def names(sizes: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(called.get(size, size) for size in keys(sizes))

    strides = names(value.stride()) if value.layout is torch.strided else ()
    return (value.dtype, value.layout, names(value.shape)), strides


def _read_expanded(graph: fx.Graph, tangent: fx.Node) -> None:
    """Let what takes a gradient take a copy, in its layout, of one that comes in expanded; it is made when it is first
    read. What only hands it on hands on what came in."""
    like = tangent.meta["val"]
    users = {user for user in tangent.users if user.op != "output"}
    first = next((node for node in graph.nodes if node in users), None)
    if first is not None:
        with graph.inserting_before(first):
            full = laid_out(graph, tangent, like)
        for user in users:
            user.replace_input_with(tangent, full)
    tangent.meta["val"] = empty_as(like, range(like.ndim), [0] * like.ndim)


def _compute_what_is_read(node: fx.Node) -> None:
    """Of several gradients that one operator can compute, compute those that are read."""
    if not isinstance(node.target, OpOverload):
        return
    names = [argument.name for argument in compat.schema_of(node.target).arguments[: len(node.args)]]
    for place in (place for place, name in enumerate(names) if name in _MASKS):
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        given: Any = node.args[place]
        mask = [asked and i in read for i, asked in enumerate(given)]
        node.update_arg(place, mask)
        node.meta["val"] = tuple(value if asked else None for value, asked in zip(node.meta["val"], mask))
