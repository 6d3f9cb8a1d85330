"""Owns which operations of a graph that runs operation by operation write into the memory of an argument.

Autograd adds gradients up in place, and fills zeros with parts of them, and a program writes to its inputs; in a
functional graph each such step is a new tensor. Generated code has rules of its own for memory that is used again, so
its graphs are left as they are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.emitter import same_layout
from minidynamo.autograd.mutation import mutation_of
from minidynamo.autograd.numbers import keys
from minidynamo.autograd.partition import maker_of
from minidynamo.autograd.recomputation import is_random
from minidynamo.autograd.written_inputs import lies_in_arguments, memory_of
from minidynamo.compat import OpOverload
from minidynamo.graph_memory import FILLING, may_share

aten = torch.ops.aten

_IN_PLACE = {aten.add.Tensor: aten.add_.Tensor} | FILLING


def write_in_place(graph: fx.Graph) -> None:
    """Let sums, and what is put into zeros, take over the memory of an argument that was made for them alone."""
    for node in graph.nodes:
        if node.target not in _IN_PLACE:
            continue
        first, *rest = node.args
        if node.target is aten.add.Tensor and not _is_given_up(first, node) and not node.kwargs:
            first, rest = rest[0], [first]
        if _is_given_up(first, node) and (isinstance(rest[0], fx.Node) or node.target is not aten.add.Tensor):
            node.target, node.args = _IN_PLACE[node.target], (first, *rest)
            node.meta["val"] = first.meta["val"]


def _is_given_up(value: Any, result: fx.Node) -> bool:
    """Whether `value` is new memory in the layout of `result`, which alone uses it."""
    if not isinstance(value, fx.Node) or len(value.users) != 1 or not _is_new(value):
        return False
    return _layout(value) == _layout(result) and result.args.count(value) == 1


def _is_new(node: fx.Node) -> bool:
    source = maker_of(node)
    if node.target in _IN_PLACE.values():
        return True
    if not isinstance(source.target, OpOverload) or source.target.namespace != "aten" or may_share(source):
        return False
    memory = memory_of(node)  # a schema does not say that an operator may return its argument as it is
    return memory is not None and all(memory_of(other) != memory for other in source.all_input_nodes)


def _layout(node: fx.Node) -> Any:
    value = node.meta["val"]
    return (value.dtype, keys(value.shape), keys(value.stride())) if memory_of(node) is not None else node


_VIEWS: dict[Any, OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
"""Operators that put something into a copy of their first argument, with the view of it that this fills."""


def write_inputs_in_place(graph: fx.Graph) -> None:
    """Let what computes the new data of an input write it there, where it only replaces what the input holds."""
    places = _Places(graph)
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            places.write(node)


class _Places:
    """Where the values of a graph lie: `whole` has the input that a node is another name for."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.inside: dict[fx.Node, frozenset[fx.Node]] = {}
        self.whole: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                self.inside[node], self.whole[node] = frozenset((node,)), node
            elif node.op == "call_function":
                found = frozenset(place for source in node.all_input_nodes for place in self.inside.get(source, ()))
                self.inside[node] = found if found and lies_in_arguments(node) else frozenset()
                if node.target is aten.copy_.default and node.args[0].op == "placeholder":
                    self.whole[node] = node.args[0]

    def write(self, copy: fx.Node) -> None:
        """Leave out the copy into an input, if that can be."""
        place, new = copy.args
        assert isinstance(place, fx.Node) and isinstance(new, fx.Node)
        if not self._is_only_for(copy, new, place):
            return
        if new.target is aten.full_like.default and same_layout(new.meta["val"], place.meta["val"]):
            self._rewrite(copy, new, aten.fill_.Scalar, (place, new.args[1]), place)
        elif new.target in _VIEWS and self.whole.get(new.args[0]) is place:  # type: ignore[arg-type]
            self._fill_view(copy, new, place)
        elif (twin := self._in_place(new, lambda source: self.whole.get(source) is place, place)) is not None:
            self._rewrite(copy, new, twin, new.args, place)

    def _rewrite(self, copy: fx.Node, new: fx.Node, op: Any, args: tuple[Any, ...], place: fx.Node) -> None:
        new.target, new.args = op, args
        if op is aten.fill_.Scalar:
            new.kwargs = {}
        new.meta["val"] = place.meta["val"]
        copy.replace_all_uses_with(new)
        self.graph.erase_node(copy)
        self.inside[new], self.whole[new] = frozenset((place,)), place

    def _fill_view(self, copy: fx.Node, scatter: fx.Node, place: fx.Node) -> None:
        """Write a part of an input, in place if it is computed from that part."""
        _, source, *where = scatter.args

        def is_part(node: fx.Node) -> bool:
            same = node.target is _VIEWS[scatter.target] and list(node.args[1:]) == where and not node.kwargs
            return same and self.whole.get(node.args[0]) is place  # type: ignore[arg-type]

        if scatter.kwargs or not isinstance(source, fx.Node):
            return
        alone = self._is_only_for(scatter, source, place)
        twin = self._in_place(source, is_part, place) if alone else None
        if twin is not None:
            source.target = twin
            self.inside[source] = frozenset((place,))
        elif place in self.inside[source]:
            return
        else:
            with self.graph.inserting_before(scatter):
                part = self.graph.call_function(_VIEWS[scatter.target], (place, *where))
                filled = self.graph.call_function(aten.copy_.default, (part, source))
            part.meta["val"] = filled.meta["val"] = source.meta["val"]
            self.inside[part] = self.inside[filled] = frozenset((place,))
        copy.replace_all_uses_with(place)
        self.graph.erase_node(copy)
        self.graph.erase_node(scatter)

    def _is_only_for(self, reader: fx.Node, new: fx.Node, place: fx.Node) -> bool:
        """Whether nothing but `reader` reads `new`, and nothing between them what `place` holds."""
        if list(new.users) != [reader]:
            return False
        node = new.next
        while node is not reader:
            if any(place in self.inside[source] for source in node.all_input_nodes):
                return False
            node = node.next
        return True

    def _in_place(self, new: fx.Node, stands: Any, place: fx.Node) -> OpOverload | None:
        """The operator that computes `new` in the memory of its first argument, for which `stands` holds; None where
        that would be another value, or another argument may be read too late."""
        first = new.args[0] if new.args else None
        twin = _twin(new.target) if isinstance(new.target, OpOverload) and not is_random(new) else None
        if twin is None or not isinstance(first, fx.Node) or not stands(first):
            return None
        if not same_layout(new.meta["val"], first.meta["val"]):
            return None
        rest: list[fx.Node] = []
        fx.map_arg((new.args[1:], new.kwargs), rest.append)
        at_the_place = torch.Tag.pointwise in new.target.tags  # type: ignore[union-attr]
        if any(place in self.inside[node] and not (at_the_place and stands(node)) for node in rest):
            return None
        return twin


@functools.cache
def _twin(op: OpOverload) -> OpOverload | None:
    """The operator of torch that writes what `op` returns to its first argument."""
    packet = getattr(aten, f"{op.overloadpacket.__name__}_", None) if op.namespace == "aten" else None
    for overload in packet.overloads() if packet is not None else ():
        found: OpOverload = getattr(packet, overload)
        mutation = mutation_of(found)
        first = compat.schema_of(op).arguments[0].name
        if mutation is not None and mutation.functional is op and mutation.arguments == mutation.returns == (first,):
            return found
    return None
