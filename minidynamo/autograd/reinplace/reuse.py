"""Owns reinplacing: operations of a functional graph become writes again, where the program writes.

The written memory belongs to an input that gets new data, or to a part of a tensor that the graph allocates. The write
is the in-place variant of the operator, or a copy into a part of a tensor.

In this module `target` is the value whose memory is overwritten, and `result` the value that is stored there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.written_inputs import memory_of
from minidynamo.autograd.graph.graph_builder import GraphBuilder, fake, has_same_result_layout, same_layout
from minidynamo.autograd.graph.mutation import (
    InplaceVariant,
    inplace_variant_of,
    is_torch_operator,
    is_view,
)
from minidynamo.autograd.graph.numbers import is_number, key
from minidynamo.autograd.graph.views import SCATTER_VIEWS, same_elements, share_elements
from minidynamo.autograd.reinplace.alias_sets import READING_LAYOUT, AliasSets, is_simple_tensor, is_window, same_kind
from minidynamo.compat import OpOverload
from minidynamo.graph.marks import WRITTEN
from minidynamo.graph.pytree import nodes_in

aten = torch.ops.aten

Slots = list[tuple[fx.Node, fx.Node]]
"""Pairs (written argument, result stored there)."""


def reinplace(
    graph: fx.Graph, is_call: Callable[[OpOverload], bool] = lambda op: True, *, own_memory: bool = False
) -> None:
    """Makes operators write to inputs, and with `own_memory` to parts of tensors that the graph allocates.

    `is_call` says whether an operator is called, rather than computed by a kernel. Kernels store into an input once,
    at the end: before that, the memory of the input has its old data.
    """
    if any(own_memory or _is_store(node) for node in graph.nodes if _is_write(node)):
        _Reinplacer(graph, is_call, own_memory).run()


class _Reinplacer:
    """A single walk over a graph; `aliases` always describes the rewritten graph."""

    def __init__(self, graph: fx.Graph, is_call: Callable[[OpOverload], bool], own_memory: bool) -> None:
        self.graph = graph
        self.is_call = is_call
        self.own_memory = own_memory
        #: Alias sets of the graph as rewritten so far.
        self.aliases = AliasSets(graph)

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function" or not is_torch_operator(node.target):
                continue
            if _is_store(node):
                self.simplify_store(node)
            elif node.target in SCATTER_VIEWS:
                self.fill_part(node)
            elif not self.is_call(node.target):
                continue
            elif node.target is aten.full_like.default:
                self.fill(node)
            else:
                self.use_variant(node)

    def is_writable(self, target: fx.Node) -> bool:
        """Returns whether a call may write to `target`: not if a kernel may have to compute its data first."""
        while isinstance(target.target, OpOverload) and is_view(target.target):
            target = target.args[0]  # type: ignore[assignment]
        return self.own_memory or target.op == "placeholder"

    def simplify_store(self, copy: fx.Node) -> None:
        """Removes a copy into an input that already has the data; otherwise makes it copy from the original instead of
        a temporary copy."""
        owner, new = copy.args
        assert isinstance(owner, fx.Node) and isinstance(new, fx.Node)
        if self.aliases.owner_of(new) is owner and same_elements(new.meta["val"], owner.meta["val"]):
            copy.replace_all_uses_with(owner)
            self.erase(copy)
            self.update_views(owner)
        elif self.is_call(aten.clone.default):  # kernels may read the source later
            sources = [
                (source, between) for source, between in _copy_sources(copy) if self.is_in_other_memory(source, owner)
            ]
            source, between = sources[-1] if sources else (new, [])
            copy.args = (owner, source)
            for node in between:
                self.erase(node)

    def fill_part(self, scatter: fx.Node) -> None:
        """Writes a part of a tensor in place instead of copying the tensor."""
        base, source, *where = scatter.args
        if scatter.kwargs or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
            return
        assert isinstance(scatter.target, OpOverload)
        part = self.compute(SCATTER_VIEWS[scatter.target], (base, *where))
        owner = self.aliases.owner_of(base)
        is_filled = self.aliases.owner_of(source) is owner and same_elements(source.meta["val"], part)
        if not (is_filled and self.is_all_of(base, scatter)) and self.end_of_result(scatter, base, scatter) is None:
            return
        if owner not in self.aliases.owners[source] or self.is_disjoint(source, part):
            if not self.is_call(scatter.target):
                return
            origin = self.copy_source(source, scatter, owner)
            with self.graph.inserting_before(scatter):
                view = self.graph.call_function(SCATTER_VIEWS[scatter.target], (base, *where))
                filled = self.graph.call_function(aten.copy_.default, (view, origin))
            for added in (view, filled):
                added.meta = {**scatter.meta, "val": part}
                self.aliases.insert(added, scatter)
        elif not is_filled:
            return
        self.replace_by(base, scatter)
        if source.target is aten.clone.default and not source.users:
            self.erase(source)

    def copy_source(self, source: fx.Node, scatter: fx.Node, owner: fx.Node | None) -> fx.Node:
        """Returns the node that `source` was copied from, if the copy directly precedes `scatter` and serves it alone;
        else `source`."""
        origin = source.args[0] if source.target is aten.clone.default else None
        if not isinstance(origin, fx.Node) or owner is None or not self.is_in_other_memory(origin, owner):
            return source
        return origin if [*source.users] == [scatter] and _cannot_fail_between(source, scatter) else source

    def fill(self, node: fx.Node) -> None:
        """Fills existing memory with a number instead of allocating a tensor."""
        user = next(iter(node.users), node)
        for owner in [node.args[0], user.args[0] if _is_store(user) else None]:
            if isinstance(owner, fx.Node) and self.end_of_result(node, owner, node) is not None:
                node.target, node.args, node.kwargs = aten.fill_.Scalar, (owner, node.args[1]), {}
                self.write_to(node, owner)
                return

    def use_variant(self, node: fx.Node) -> None:
        """Replaces an operator by its in-place variant, if that is possible."""
        variant = inplace_variant_of(node.target)
        if variant is None or not self.is_call(variant.op):
            return
        call = variant.call(node.target, node)  # type: ignore[arg-type]
        slots = _slots(node, variant) if call is not None else None
        if not slots or call is None:
            return
        owners = [self.aliases.owner_of(target) for target, _ in slots]
        if len({*owners}) < len(owners) or any(self.is_read_after_write(node, variant, target) for target, _ in slots):
            return
        if any(self.end_of_result(node, target, result) is None for target, result in slots):
            return
        node.target, (node.args, node.kwargs) = variant.op, call
        for target, result in slots:
            if result is node:
                self.write_to(node, target)
            else:
                self.replace_by(target, result)
        if slots[0][1] is not node:
            _drop_written_results(node, variant.own_results)

    def end_of_result(self, node: fx.Node, target: fx.Node, result: fx.Node) -> float | None:
        """Returns None if `node` must not store `result` in the memory of `target`; else the position before which
        `result` must be read for the last time: later the memory has other data, or is free."""
        aliases = self.aliases
        owner = aliases.owner_of(target)
        if (
            owner is None
            or aliases.owners[result] != {result}
            or not _fits(target, result)
            or not self.is_writable(target)
        ):
            return None
        readers = aliases.readers(owner, aliases.position[node])
        end: float | None = None
        if not readers:
            end = math.inf if node.target in SCATTER_VIEWS and self.is_all_of(target, result) else None
        elif readers[0].target in SCATTER_VIEWS:
            end = self.end_before_part(readers[0], target, result)
        elif _is_store(readers[0]) and readers[0].args[0] is owner:
            end = self.end_before_store(readers, target, result)
        elif result is node and WRITTEN in node.meta and node.args[0] is target and owner.op == "call_function":
            end = self.end_before_window(readers, target, result)
        if end is None or (owner.op == "placeholder" and not _cannot_fail_between(node, readers[0])):
            return None
        return end if aliases.last_read(result) < end else None

    def end_before_part(self, scatter: fx.Node, target: fx.Node, result: fx.Node) -> float | None:
        """Returns `end_of_result` if the next reader of the memory writes the result to the part `target` of a
        tensor."""
        base, source, *where = scatter.args
        if scatter.kwargs or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
            return None
        if self.aliases.owners[source] != {result} or self.aliases.owner_of(base) != self.aliases.owner_of(target):
            return None
        part = self.compute(SCATTER_VIEWS[scatter.target], (base, *where))
        # All of `result` must fit the part, since the rest of the tensor is read as well.
        whole = key(source.meta["val"].numel()) == key(result.meta["val"].numel())
        fits = whole and _would_write_there(source, scatter, result, target, part)
        end = self.end_of_result(scatter, base, scatter) if fits else None
        # Results of the graph must not share memory.
        return None if end is None else min(end, self.aliases.position[self.graph.output_node()])

    def end_before_store(self, readers: Sequence[fx.Node], target: fx.Node, result: fx.Node) -> float | None:
        """Returns `end_of_result` if the next reader of the memory copies the result into the input that has this
        memory."""
        copy, *later = readers
        owner, new = copy.args
        assert isinstance(owner, fx.Node) and isinstance(new, fx.Node)
        if self.aliases.owners[new] != {result} or not _would_write_there(new, copy, result, target, owner.meta["val"]):
            return None
        start = self.aliases.position[copy]
        for other in later:
            source = other.args[1] if _is_store(other) and other.args[0] is owner else None
            if not isinstance(source, fx.Node) or self.aliases.position[source] <= start:
                return None
        return self.aliases.position[later[0]] if later else self.aliases.position[self.graph.output_node()]

    def end_before_window(self, readers: Sequence[fx.Node], target: fx.Node, result: fx.Node) -> float | None:
        """Returns `end_of_result` if the program itself writes to `target`, and only the rest of the memory is read
        later.

        The memory lives for these readers alone. The readers of the result must compute the same bits from the layout
        of `target`.
        """
        owner = self.aliases.owner_of(target)
        for reader in readers:
            for node in reader.all_input_nodes:
                value = node.meta["val"]
                if owner in self.aliases.owners[node] and (
                    not is_simple_tensor(value) or share_elements(value, target.meta["val"])
                ):
                    return None
        if not all(self.keeps_layout(user, result, target) for user in result.users):
            return None
        return self.aliases.position[readers[-1]] + 1

    def keeps_layout(self, user: fx.Node, result: fx.Node, target: fx.Node) -> bool:
        """Returns whether `user` computes the same elements in the same layout from `target` instead of `result`."""
        op = user.target
        return (
            isinstance(op, OpOverload)
            and torch.Tag.pointwise in op.tags
            and has_same_result_layout(user, result, target)
        )

    def is_read_after_write(self, node: fx.Node, variant: InplaceVariant, target: fx.Node) -> bool:
        """Returns whether another argument may be read after the write has changed it."""
        owner = self.aliases.owner_of(target)
        others = nodes_in((node.args, node.kwargs))
        others.remove(target)
        in_memory = [arg for arg in others if owner in self.aliases.owners[arg]]
        in_memory = [arg for arg in in_memory if not self.are_disjoint(arg, target)]
        op = node.target
        if not isinstance(op, OpOverload) or torch.Tag.pointwise not in op.tags or len(variant.written) > 1:
            return bool(in_memory)
        return not all(arg is target or same_elements(arg.meta["val"], target.meta["val"]) for arg in in_memory)

    def is_all_of(self, target: fx.Node, result: fx.Node) -> bool:
        """Returns whether `target` was allocated in the graph, and `result` fills its memory."""
        allocated = self.aliases.owner_of(target) is target and target.op == "call_function"
        return allocated and self.is_writable(target) and same_layout(target.meta["val"], result.meta["val"])

    def is_in_other_memory(self, node: fx.Node, owner: fx.Node) -> bool:
        """Returns whether a value cannot be in the memory of `owner`."""
        return owner not in self.aliases.owners[node]

    def are_disjoint(self, a: fx.Node, b: fx.Node) -> bool:
        """Returns whether two nodes in one memory share no element."""
        return memory_of(a) is not None and self.is_disjoint(a, b.meta.get("val"))

    def is_disjoint(self, node: fx.Node, owner: Any) -> bool:
        """Returns whether a node and a fake value in one memory share no element."""
        value: Any = node.meta.get("val")
        if not is_simple_tensor(value) or not is_simple_tensor(owner) or not compat.share_memory(value, owner):
            return False
        return not share_elements(value, owner)

    def compute(self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any] = {}) -> Any:
        """Returns the fake value of a view, or of another operation."""
        first, *_ = nodes_in(args)
        with GraphBuilder(first.meta["val"].fake_mode, self.graph).computing(), torch.no_grad():
            return op(*fake(args), **fake(kwargs))

    def write_to(self, node: fx.Node, target: fx.Node) -> None:
        """Records a write of `node` to `target`; `node` returns `target`."""
        self.move(node, target)
        node.meta["val"] = target.meta["val"]
        self.update_views(node)

    def replace_by(self, target: fx.Node, result: fx.Node) -> None:
        """Replaces `result` by `target` in all readers."""
        self.move(result, target)
        result.replace_all_uses_with(target)
        self.update_views(target)
        self.erase(result)

    def move(self, result: fx.Node, target: fx.Node) -> None:
        owner = self.aliases.owner_of(target)
        assert owner is not None
        self.aliases.merge(result, owner)

    def update_views(self, node: fx.Node) -> None:
        """Recomputes the fake values of the views of `node`, which has moved."""
        for user in node.users:
            if isinstance(user.target, OpOverload) and is_view(user.target) and user.args[0] is node:
                user.meta["val"] = self.compute(user.target, user.args)
                self.update_views(user)

    def erase(self, node: fx.Node) -> None:
        for owner in self.aliases.owners.pop(node):
            self.aliases.members[owner].remove(node)
        self.graph.erase_node(node)


def _is_write(node: fx.Node) -> bool:
    """Returns whether the program writes to a tensor at `node`."""
    return WRITTEN in node.meta or node.target is aten.copy_.default or node.target in SCATTER_VIEWS


def _is_store(node: fx.Node) -> bool:
    """Returns whether `node` copies new data into an input."""
    return node.target is aten.copy_.default and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


def _copy_sources(copy: fx.Node) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Yields the nodes that `copy` could read instead, each with the layout-only nodes between, which directly precede
    `copy`."""
    reader, order = copy, [*range(copy.meta["val"].ndim)]
    passed: list[fx.Node] = []
    while True:
        node: Any = reader.args[1 if reader is copy else 0]
        if order == sorted(order):
            yield node, passed[:]
        if node.target not in (aten.clone.default, aten.permute.default):
            return
        if [*node.users] != [reader] or node.next is not reader:
            return
        if node.target is aten.permute.default:
            order = [node.args[1][dim] % len(order) for dim in order]
        passed.append(node)
        reader = node


def _fits(target: fx.Node, result: fx.Node) -> bool:
    old, new = target.meta.get("val"), result.meta.get("val")
    return is_simple_tensor(old) and is_simple_tensor(new) and same_kind(old, new)  # type: ignore[arg-type]


def _would_write_there(
    new: fx.Node, reader: fx.Node, result: fx.Node, target: fx.Node, destination: torch.Tensor
) -> bool:
    """Returns whether `reader` would copy `new`, which is `result` or a view of it, to the elements where `result`
    already is.

    If `reader` is the only reader of `result`, the strides of `result` do not matter; except that for `bernoulli` the
    strides assign random numbers to elements.
    """
    if new is result and [*result.users] == [reader] and result.target is not aten.bernoulli.p:
        return same_elements(target.meta["val"], destination)
    return same_layout(target.meta["val"], result.meta["val"]) and is_window(
        new, result, target.meta["val"], destination
    )


def _cannot_fail_between(node: fx.Node, reader: fx.Node) -> bool:
    """Returns whether no operation between `node` and `reader` can raise an error; after an error an input must have
    the data that it has in eager."""
    while (node := node.next) is not reader:
        cannot_fail = isinstance(node.target, OpOverload) and is_view(node.target)
        cannot_fail = cannot_fail or node.target in (
            operator.getitem,
            aten.copy_.default,
            *READING_LAYOUT,
            *SCATTER_VIEWS,
        )
        if not cannot_fail and not is_number(node):
            return False
    return True


def _slots(node: fx.Node, variant: InplaceVariant) -> Slots | None:
    """Returns the arguments that the in-place variant of an operation would write, with its present results; None if
    unknown, or if a result has no reader."""
    if any(position >= len(node.args) for position in variant.written):
        return None
    written: list[Any] = [node.args[position] for position in variant.written]
    slots: list[tuple[Any, list[fx.Node]]] = []
    if isinstance(node.meta.get("val"), torch.Tensor):
        slots = [(written[0], [node])] if variant.own_results == 0 and len(written) == 1 else []
    else:
        targets = written[0] if len(written) == 1 and isinstance(written[0], (list, tuple)) else written
        elements: dict[Any, list[fx.Node]] = {}
        for user in node.users:
            elements.setdefault(user.args[1], []).append(user)
        slots = [
            (target, elements.get(variant.own_results + k, []))
            for k, target in enumerate(targets)
            if target is not None
        ]
    if any(len(results) != 1 or not isinstance(target, fx.Node) for target, results in slots):
        return None
    return [(target, result) for target, (result,) in slots]


def _drop_written_results(node: fx.Node, own: int) -> None:
    """Restricts the results of `node` to its first `own`, the only results of an in-place variant."""
    value = node.meta["val"]
    node.meta["val"] = tuple(value[:own]) if own > 1 else value[0] if own else None
    for element in list(node.users) if own == 1 else ():
        element.replace_all_uses_with(node)
        node.graph.erase_node(element)
