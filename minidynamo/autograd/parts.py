"""Owns backward graphs for a part of what backward can compute: what nobody takes is left out, as in eager.

`autograd.grad(y, [x])` takes one gradient of many, and of several results a program may use one. Which part that is, is
found out in `runtime.py`; nothing is compiled here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.locations import USERS_BACKWARD
from minidynamo.autograd.numbers import dense_strides, has_symbols, hint, is_number, keys
from minidynamo.autograd.partition import backward_graph, tangent_dependent
from minidynamo.compat import OpOverload

aten = torch.ops.aten

# Arguments of operators that compute several gradients: which of them.
_MASKS = frozenset(("output_mask", "grad_input_mask"))


@dataclass(frozen=True)
class Part:
    """What is left out of backward: `unused` are the positions of results that no gradient comes in for, counted among
    the differentiable ones; `unwanted` those of gradients that nobody takes."""

    unused: frozenset[int] = frozenset()
    unwanted: frozenset[int] = frozenset()

    @property
    def stage(self) -> str:
        """The name of its compiled graph among those that are kept."""
        if self == WHOLE:
            return "backward"
        unused, unwanted = (" ".join(map(str, sorted(places))) for places in (self.unused, self.unwanted))
        return f"backward, results unused: {unused or 'none'}, gradients unwanted: {unwanted or 'none'}"


WHOLE = Part()


def part_of(gm: fx.GraphModule, saved: int, part: Part) -> fx.GraphModule:
    """The graph of a part of the backward graph `gm`, which takes so many values that forward has saved, then tangents.

    The whole is a copy: whoever compiles it may change it. A part takes the same inputs, but for each unused result one
    zero that is expanded to the shape of its gradient; in the places of unwanted gradients it returns None.
    """
    graph = fx.Graph()
    gradients: Any = graph.graph_copy(gm.graph, {})
    output = graph.output(gradients)
    if part == WHOLE:
        return fx.GraphModule(torch.nn.Module(), graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    kept, tangents = inputs[:saved], inputs[saved:]
    unused = [tangents[place] for place in sorted(part.unused)]
    _leave_out(graph, set(unused), tangent_dependent(graph, {*kept}))
    for tangent in unused:
        _read_zeros(graph, tangent)
    results: Any = output.args[0]
    wanted = [None if place in part.unwanted else node for place, node in enumerate(results)]
    made = backward_graph(graph, kept, tangents, wanted, tangent_dependent(graph, {*kept, *unused}))
    for node in made.nodes:
        _compute_what_is_read(node)
    return fx.GraphModule(torch.nn.Module(), made)


def _leave_out(graph: fx.Graph, nothing: set[fx.Node], behind: set[fx.Node]) -> None:
    """Leave summands out that come from gradients in `nothing` alone: eager does not compute them. `behind` is what is
    computed from any gradient.

    A backward that the user wrote is not called for nothing alone; otherwise it gets zeros, and may compute anything.
    """
    given: dict[str, set[fx.Node]] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            call = node.meta.get(USERS_BACKWARD)
            if call is not None and source in behind and source.meta.get(USERS_BACKWARD) != call:
                given.setdefault(call, set()).add(source)
    for node in graph.nodes:
        if node.op != "call_function" or is_number(node):
            continue
        late = [source for source in node.all_input_nodes if source in behind and not is_number(source)]
        call = node.meta.get(USERS_BACKWARD)
        if call is not None:
            late = [*given.get(call, ())]
        if late and nothing.issuperset(late):
            nothing.add(node)
        elif call is not None:
            continue
        elif node.target is aten.add.Tensor and not node.kwargs and not nothing.isdisjoint(late):
            (rest,) = (source for source in late if source not in nothing)
            if _layout(rest) == _layout(node):
                node.replace_all_uses_with(rest)
            elif _layout(rest)[0] == _layout(node)[0]:
                with graph.inserting_before(node):
                    copy = _laid_out(graph, rest, node.meta["val"])
                behind.add(copy)
                node.replace_all_uses_with(copy)


def _layout(node: fx.Node) -> Any:
    value = node.meta["val"]
    strides = keys(value.stride()) if value.layout is torch.strided else ()
    return (value.dtype, value.layout, keys(value.shape)), strides


def _read_zeros(graph: fx.Graph, tangent: fx.Node) -> None:
    """Let what takes a gradient that does not come in take zeros in its layout, from one that is expanded."""
    like = tangent.meta["val"]
    users = list(tangent.users)
    with graph.inserting_after(tangent):
        zeros = _laid_out(graph, tangent, like)
    for user in users:
        user.replace_input_with(tangent, zeros)
    tangent.meta["val"] = _empty(like, range(like.ndim), [0] * like.ndim)


def _laid_out(graph: fx.Graph, source: fx.Node, like: torch.Tensor) -> fx.Node:
    """A copy of `source` in the layout of `like`, a fake tensor of its shape."""
    inner = sorted(range(like.ndim), key=lambda dim: (hint(like.stride(dim)), hint(like.shape[dim]), -dim))
    stride = like.stride() if has_symbols(like) else dense_strides(inner, like.shape)
    outer = inner[::-1]
    back = graph.call_function(aten.permute.default, (source, [outer.index(dim) for dim in range(like.ndim)]))
    with graph.inserting_before(back):
        permuted = graph.call_function(aten.permute.default, (source, outer))
        copy = graph.call_function(aten.clone.default, (permuted,), {"memory_format": torch.contiguous_format})
    back.replace_input_with(source, copy)
    permuted.meta["val"] = _empty(like, outer, source.meta["val"].stride())
    copy.meta["val"], back.meta["val"] = _empty(like, outer, stride), _empty(like, range(like.ndim), stride)
    return back


def _empty(like: Any, order: Sequence[int], stride: Sequence[Any]) -> torch.Tensor:
    """A fake tensor with the dimensions of `like` in another order; `stride` is by the old one."""
    with like.fake_mode:
        sizes, strides = [like.shape[dim] for dim in order], [stride[dim] for dim in order]
        return torch.empty_strided(sizes, strides, dtype=like.dtype, device=like.device)


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
