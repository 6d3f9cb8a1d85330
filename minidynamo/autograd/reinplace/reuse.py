"""Owns which operations of a graph without writes become writes again: to memory whose data nobody reads any more.

Such memory was made in the graph, or is that of an input which gets the new data soon. A result may lie there that is
computed by the twin of its operator, one that writes to its argument, or that puts something into a part of a tensor.
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
from minidynamo.autograd.graph.graph_builder import GraphBuilder, fake, gives_alike, same_layout
from minidynamo.autograd.graph.inplace_variants import Twin, inplace_variant_of, out_variant
from minidynamo.autograd.graph.mutation import is_torchs, is_view
from minidynamo.autograd.graph.numbers import is_number, key, keys
from minidynamo.autograd.graph.overlaps import same_elements, share_elements
from minidynamo.autograd.graph.views import PARTS
from minidynamo.autograd.reinplace.alias_sets import READING_LAYOUT, Memories, is_plain, is_window, same_kind
from minidynamo.compat import OpOverload
from minidynamo.graph.boxed import BoxedCallable, HandOver, hands_over, mark_boxed
from minidynamo.graph.pytree import nodes_in
from minidynamo.memory.unfused_peak import OUT, WRITTEN

aten = torch.ops.aten

SYMMETRIC = frozenset((aten.add.Tensor, aten.mul.Tensor))
"""Operators that give the same, to the last bit, whichever of their two arguments comes first."""

Slots = list[tuple[fx.Node, fx.Node | None]]
"""What may be written, and the result that would lie there; None if nobody reads that."""

Renewed = dict[int, bool]
"""The positions of results that lie where something else did, each with whether it was a view before that."""


def overwrite(graph: fx.Graph) -> Renewed:
    """Let operations write where what they read dies, as far as that can be told. Results that were made anew lie in
    memory that is written to, or are views of it: torch must not count that, nor tell the program."""
    if not any(isinstance(node.meta.get("val"), torch.Tensor) for node in graph.nodes):
        return {}
    walk = _Overwriting(graph)
    results = _results(graph)
    before = {position: _is_a_view(node) for position, node in results.items()}
    walk.run()
    return {position: before[position] for position, node in _results(graph).items() if walk.is_renewed(node)}


def as_new(run: BoxedCallable, renewed: Renewed) -> BoxedCallable:
    """`run`, of whose results those that lie in memory written to are what they were before `overwrite`."""
    if not renewed:
        return run
    counting = counted_as(run, dict.fromkeys(renewed, 0))
    views = [position for position, was_view in renewed.items() if not was_view]

    def call(args: list[Any]) -> list[Any]:
        made: list[Any] = counting(args)
        for position in views:
            if made[position]._is_view():
                made[position] = made[position].detach()
        return made

    return mark_boxed(call)


def counted_as(run: BoxedCallable, versions: Mapping[int, int]) -> BoxedCallable:
    """`run`, with torch counting its results, by position, as written so often. What was handed over is not asked."""
    if not versions:
        return run

    def call(args: list[Any], hand_over: HandOver | None = None) -> list[Any]:
        made = list(run(args) if hand_over is None else run(args, hand_over))  # type: ignore[call-arg]
        counted = {i: version for i, version in versions.items() if made[i] is not None}
        counted = {i: version for i, version in counted.items() if compat.version_of(made[i]) is not None}
        compat.set_versions([made[i] for i in counted], counted.values())
        return made

    call._hands_over = hands_over(run)  # type: ignore[attr-defined]
    return mark_boxed(call)


def overwrite_inputs(graph: fx.Graph, is_called: Callable[[OpOverload], bool]) -> None:
    """Let operators that are called as they stand, rather than computed by generated code, write to inputs.

    What is made in the graph is placed by whoever generates the code.
    """
    if graph.find_nodes(op="call_function", target=aten.copy_.default):
        _OverwritingInputs(graph, is_called).run()


class _Overwriting:
    """One walk over a graph. `memories` is kept true of what has been rewritten so far."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.memories = Memories(graph)
        self.written: set[fx.Node] = set()

    def is_renewed(self, node: fx.Node) -> bool:
        """Whether a value may lie in memory made here of which something else has been overwritten."""
        return any(place in self.written and place.op == "call_function" for place in self.memories.places[node])

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function" or not is_torchs(node.target):
                continue
            if _is_store(node):
                self.store(node)
            elif node.target in PARTS:
                self.fill_part(node)
            elif not self.is_called(node.target):
                continue
            elif node.target is aten.clone.default and self.limit(node, node.args[0], node) == math.inf:
                self.stands_for(node.args[0], node)  # which nobody else reads
            elif node.target is aten.full_like.default:
                self.fill(node)
            elif not self.by_twin(node) and not self.by_twin_swapped(node):
                self.to_output(node)

    def is_called(self, op: OpOverload) -> bool:
        """Whether an operator is called as it stands."""
        return True

    def is_at_hand(self, there: fx.Node) -> bool:
        """Whether `there` may be written by a call."""
        return True

    def store(self, copy: fx.Node) -> None:
        """Leave out a copy into an input of what lies there already; make it of what was copied for it."""
        place, new = copy.args
        assert isinstance(place, fx.Node) and isinstance(new, fx.Node)
        if self.memories.place_of(new) is place and same_elements(new.meta["val"], place.meta["val"]):
            copy.replace_all_uses_with(place)
            self.erase(copy)
            self.renew(place)
        elif self.is_called(aten.clone.default):  # kernels may read the source later
            found = [(source, between) for source, between in _copied_for(copy) if self.is_beside(source, place)]
            source, between = found[-1] if found else (new, [])
            copy.args = (place, source)
            for node in between:
                self.erase(node)

    def fill_part(self, scatter: fx.Node) -> None:
        """Write a part of a tensor where it is."""
        base, source, *where = scatter.args
        if scatter.kwargs or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
            return
        assert isinstance(scatter.target, OpOverload)
        part = self.compute(PARTS[scatter.target], (base, *where))
        place = self.memories.place_of(base)
        is_filled = self.memories.place_of(source) is place and same_elements(source.meta["val"], part)
        if not (is_filled and self.is_all_of(base, scatter)) and self.limit(scatter, base, scatter) is None:
            return
        if place not in self.memories.places[source] or self.is_apart(source, part):
            if not self.is_called(scatter.target):
                return
            origin = self.copied_for(source, scatter, place)
            with self.graph.inserting_before(scatter):
                view = self.graph.call_function(PARTS[scatter.target], (base, *where))
                filled = self.graph.call_function(aten.copy_.default, (view, origin))
            for made in (view, filled):
                made.meta = {**scatter.meta, "val": part}
                self.memories.insert(made, scatter)
        elif not is_filled:
            return
        self.stands_for(base, scatter)
        if source.target is aten.clone.default and not source.users:
            self.erase(source)

    def copied_for(self, source: fx.Node, scatter: fx.Node, place: fx.Node | None) -> fx.Node:
        """What `source` was copied from, right in front of `scatter` and for that alone; else `source` itself."""
        origin = source.args[0] if source.target is aten.clone.default else None
        if not isinstance(origin, fx.Node) or place is None or not self.is_beside(origin, place):
            return source
        return origin if [*source.users] == [scatter] and _is_soon(source, scatter) else source

    def fill(self, node: fx.Node) -> None:
        """Fill memory with a number instead of making a tensor like it."""
        user = next(iter(node.users), node)
        for place in [node.args[0], user.args[0] if _is_store(user) else None]:
            if isinstance(place, fx.Node) and self.limit(node, place, node) is not None:
                node.target, node.args, node.kwargs = aten.fill_.Scalar, (place, node.args[1]), {}
                self.lies_at(node, place)
                return

    def to_output(self, node: fx.Node) -> None:
        """Let what the program writes to `out=` be written there."""
        user = next(iter(node.users), node)
        op = out_variant(node.target) if OUT in node.meta and _is_written_by(user, node) else None
        place, *where = user.args[0], *user.args[2:]
        if op is None or not isinstance(place, fx.Node):
            return
        if user.target in PARTS:
            if any(self.memories.position[one] > self.memories.position[node] for one in nodes_in((place, where))):
                return
            with self.graph.inserting_before(node):
                view = self.graph.call_function(PARTS[user.target], (place, *where))
            view.meta = {**user.meta, "val": self.compute(PARTS[user.target], (place, *where))}
            self.memories.insert(view, node)
            place = view
        fits = keys(node.meta["val"].shape) == keys(place.meta["val"].shape) and not self.is_read(node, place)
        if fits and self.limit(node, place, node) is not None:
            node.target, node.kwargs = op, {**node.kwargs, "out": place}
            self.lies_at(node, place)
        elif place.op == "call_function" and not place.users:
            self.erase(place)

    def by_twin(self, node: fx.Node) -> bool:
        """Let the twin of an operator write to its arguments; whether that can be."""
        twin = inplace_variant_of(node.target)
        if twin is None or not self.is_called(twin.op):
            return False
        call = twin.call(node.target, node)  # type: ignore[arg-type]
        slots = _slots(node, twin) if call is not None else None
        if not slots or call is None:
            return False
        places = [self.memories.place_of(there) for there, _ in slots]
        if len({*places}) < len(places) or any(self.is_read_late(node, twin, there) for there, _ in slots):
            return False
        if not all(self.may_write(node, there, made) for there, made in slots):
            return False
        node.target, (node.args, node.kwargs) = twin.op, call
        for there, made in slots:
            if made is node:
                self.lies_at(node, there)
            elif made is not None:
                self.stands_for(there, made)
        if slots[0][1] is not node:
            _keep_own(node, twin.own)
        return True

    def by_twin_swapped(self, node: fx.Node) -> bool:
        """The same with two arguments in the other order, where that changes nothing."""
        if node.target not in SYMMETRIC or node.kwargs or WRITTEN in node.meta or OUT in node.meta:
            return False
        first, second = node.args
        values = [arg.meta["val"] for arg in (first, second) if isinstance(arg, fx.Node)]
        if len(values) < 2 or not all(isinstance(value, torch.Tensor) for value in values) or not same_kind(*values):
            return False
        node.args = (second, first)
        if self.by_twin(node):
            return True
        node.args = (first, second)
        return False

    def may_write(self, node: fx.Node, there: fx.Node, made: fx.Node | None) -> bool:
        """Whether `node` may write to `there` what `made` reads of it."""
        if made is not None:
            return self.limit(node, there, made) is not None
        place = self.memories.place_of(there)
        return (
            place is not None
            and self.is_at_hand(there)
            and self.memories.is_whole(there)
            and not self.memories.readers(place, self.memories.position[node])
        )

    def limit(self, node: fx.Node, there: fx.Node, made: fx.Node) -> float | None:
        """If `made`, a result of `node`, may lie where `there` does: the position before which it has to be read."""
        memories = self.memories
        place = memories.place_of(there)
        if place is None or memories.places[made] != {made} or not _fits(there, made) or not self.is_at_hand(there):
            return None
        readers = memories.readers(place, memories.position[node])
        limit: float | None = None
        if not readers:
            limit = math.inf if self.is_all_of(there, made) else None
        elif readers[0].target in PARTS:
            limit = self.limit_by_part(readers[0], there, made)
        elif _is_store(readers[0]) and readers[0].args[0] is place:
            limit = self.limit_by_store(readers, there, made)
        elif made is node and WRITTEN in node.meta and node.args[0] is there and place.op == "call_function":
            limit = self.limit_by_window(readers, there, made)
        if limit is None or (place.op == "placeholder" and not _is_soon(node, readers[0])):
            return None
        return limit if memories.last_read(made) < limit else None

    def limit_by_part(self, scatter: fx.Node, there: fx.Node, made: fx.Node) -> float | None:
        """The same where the next reader puts it into the tensor of which `there` is that part."""
        base, source, *where = scatter.args
        if scatter.kwargs or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
            return None
        if self.memories.places[source] != {made} or self.memories.place_of(base) != self.memories.place_of(there):
            return None
        part = self.compute(PARTS[scatter.target], (base, *where))
        # All of `made` has to go there: what lies around the part is read, too.
        whole = key(source.meta["val"].numel()) == key(made.meta["val"].numel())
        fits = whole and _comes_to(source, scatter, made, there, part)
        limit = self.limit(scatter, base, scatter) if fits else None
        # A result of the graph shares its memory with no other.
        return None if limit is None else min(limit, self.memories.position[self.graph.output_node()])

    def limit_by_store(self, readers: Sequence[fx.Node], there: fx.Node, made: fx.Node) -> float | None:
        """The same where the next reader copies it into the input that `there` lies in."""
        copy, *later = readers
        place, new = copy.args
        assert isinstance(place, fx.Node) and isinstance(new, fx.Node)
        if self.memories.places[new] != {made} or not _comes_to(new, copy, made, there, place.meta["val"]):
            return None
        start = self.memories.position[copy]
        for other in later:
            source = other.args[1] if _is_store(other) and other.args[0] is place else None
            if not isinstance(source, fx.Node) or self.memories.position[source] <= start:
                return None
        return self.memories.position[later[0]] if later else self.memories.position[self.graph.output_node()]

    def limit_by_window(self, readers: Sequence[fx.Node], there: fx.Node, made: fx.Node) -> float | None:
        """The same where the program has written to `there`, and the rest of that memory is read later. It lives for
        these readers alone."""
        place = self.memories.place_of(there)
        for reader in readers:
            for node in reader.all_input_nodes:
                value = node.meta["val"]
                if place in self.memories.places[node] and (
                    not is_plain(value) or share_elements(value, there.meta["val"])
                ):
                    return None
        if not all(self.keeps_layout(user, made, there) for user in made.users):
            return None
        return self.memories.position[readers[-1]] + 1

    def keeps_layout(self, user: fx.Node, made: fx.Node, there: fx.Node) -> bool:
        """Whether `user` computes the same, element by element, in the same layout, of `there` instead of `made`."""
        op = user.target
        return isinstance(op, OpOverload) and torch.Tag.pointwise in op.tags and gives_alike(user, made, there)

    def is_read(self, node: fx.Node, there: fx.Node) -> bool:
        """Whether an argument may lie in the memory of `there`."""
        place = self.memories.place_of(there)
        return any(place in self.memories.places[arg] for arg in node.all_input_nodes)

    def is_read_late(self, node: fx.Node, twin: Twin, there: fx.Node) -> bool:
        """Whether another argument may be read where it has been written already."""
        place = self.memories.place_of(there)
        around = nodes_in((node.args, node.kwargs))
        around.remove(there)
        found = [arg for arg in around if place in self.memories.places[arg]]
        found = [arg for arg in found if not self.are_apart(arg, there)]
        op = node.target
        if not isinstance(op, OpOverload) or torch.Tag.pointwise not in op.tags or len(twin.written) > 1:
            return bool(found)
        return not all(arg is there or same_elements(arg.meta["val"], there.meta["val"]) for arg in found)

    def is_all_of(self, there: fx.Node, made: fx.Node) -> bool:
        """Whether `made` takes all of the memory in which `there` lies."""
        alike = self.memories.places[made] == {made} and same_layout(there.meta["val"], made.meta["val"])
        return alike and self.is_at_hand(there) and self.memories.is_whole(there)

    def is_beside(self, node: fx.Node, place: fx.Node) -> bool:
        """Whether a value lies in another memory."""
        return place not in self.memories.places[node]

    def are_apart(self, one: fx.Node, other: fx.Node) -> bool:
        """Whether two nodes in one memory have no element of it in common."""
        return memory_of(one) is not None and self.is_apart(one, other.meta.get("val"))

    def is_apart(self, node: fx.Node, place: Any) -> bool:
        """Whether a node in the memory of a fake value has no element of it in common."""
        value: Any = node.meta.get("val")
        if not is_plain(value) or not is_plain(place) or not compat.share_memory(value, place):
            return False
        return not share_elements(value, place)

    def compute(self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any] = {}) -> Any:
        """The fake value of a view, or of another operation."""
        first, *_ = nodes_in(args)
        with GraphBuilder(first.meta["val"].fake_mode, self.graph).computing(), torch.no_grad():
            return op(*fake(args), **fake(kwargs))

    def lies_at(self, node: fx.Node, there: fx.Node) -> None:
        """`node` writes to `there`, and returns it."""
        self.move(node, there)
        node.meta["val"] = there.meta["val"]
        self.renew(node)

    def stands_for(self, there: fx.Node, made: fx.Node) -> None:
        """Whoever reads `made` reads `there`."""
        self.move(made, there)
        made.replace_all_uses_with(there)
        self.renew(there)
        self.erase(made)

    def move(self, made: fx.Node, there: fx.Node) -> None:
        place = self.memories.place_of(there)
        assert place is not None
        self.memories.merge(made, place)
        self.written.add(place)

    def renew(self, node: fx.Node) -> None:
        """Compute the fake values of the views of `node`, which lies elsewhere now."""
        for user in node.users:
            if isinstance(user.target, OpOverload) and is_view(user.target) and user.args[0] is node:
                user.meta["val"] = self.compute(user.target, user.args)
                self.renew(user)

    def erase(self, node: fx.Node) -> None:
        for place in self.memories.places.pop(node):
            self.memories.members[place].remove(node)
        self.graph.erase_node(node)


class _OverwritingInputs(_Overwriting):
    """The same for a graph of which the rest becomes generated code. That stores into an input once, at the end: what
    it stores there on the way is not in the memory of the input."""

    def __init__(self, graph: fx.Graph, is_called: Callable[[OpOverload], bool]) -> None:
        super().__init__(graph)
        self._is_called = is_called

    def is_called(self, op: OpOverload) -> bool:
        """Whether no kernel computes what an operator returns."""
        return self._is_called(op)

    def is_at_hand(self, there: fx.Node) -> bool:
        """Whether `there` is an input, or a view of one, with the data that it has in the graph."""
        while isinstance(there.target, OpOverload) and is_view(there.target):
            there = there.args[0]  # type: ignore[assignment]
        return there.op == "placeholder"


def _results(graph: fx.Graph) -> dict[int, fx.Node]:
    """The tensors that a graph returns, by position."""
    results: Any = graph.output_node().args[0]
    return {
        position: node
        for position, node in enumerate(results)
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
    }


def _is_a_view(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and is_view(node.target)


def _is_store(node: fx.Node) -> bool:
    """Whether `node` gives an input new data."""
    return node.target is aten.copy_.default and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


def _is_written_by(user: fx.Node, node: fx.Node) -> bool:
    """Whether `user` puts `node` into an input, or into a part of a tensor."""
    return _is_store(user) or bool(user.target in PARTS and user.args[1] is node)


def _copied_for(copy: fx.Node) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """What `copy` could as well read, each with the nodes that only change its layout, right in front of `copy`."""
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


def _fits(there: fx.Node, made: fx.Node) -> bool:
    old, new = there.meta.get("val"), made.meta.get("val")
    return is_plain(old) and is_plain(new) and same_kind(old, new)  # type: ignore[arg-type]


def _comes_to(new: fx.Node, reader: fx.Node, made: fx.Node, there: fx.Node, place: torch.Tensor) -> bool:
    """Whether `reader` would put `new`, which is `made` or a view of it, to the elements where `made` lies already. Who
    alone reads it does not mind its strides; but they decide which number is drawn where."""
    if new is made and [*made.users] == [reader] and made.target is not aten.bernoulli.p:
        return same_elements(there.meta["val"], place)
    return same_layout(there.meta["val"], made.meta["val"]) and is_window(new, made, there.meta["val"], place)


def _is_soon(node: fx.Node, reader: fx.Node) -> bool:
    """Whether nothing that can fail comes between an operation and who reads it: an input that is written keeps what it
    holds where an error comes first."""
    while (node := node.next) is not reader:
        moves = isinstance(node.target, OpOverload) and is_view(node.target)
        moves = moves or node.target in (operator.getitem, aten.copy_.default, *READING_LAYOUT, *PARTS)
        if not moves and not is_number(node):
            return False
    return True


def _slots(node: fx.Node, twin: Twin) -> Slots | None:
    """What the twin of an operation would write, with what it is now; None where that cannot be told."""
    if any(position >= len(node.args) for position in twin.written):
        return None
    written: list[Any] = [node.args[position] for position in twin.written]
    found: list[tuple[Any, list[fx.Node]]] = []
    if isinstance(node.meta.get("val"), torch.Tensor):
        found = [(written[0], [node])] if twin.own == 0 and len(written) == 1 else []
    else:
        targets = written[0] if len(written) == 1 and isinstance(written[0], (list, tuple)) else written
        elements: dict[Any, list[fx.Node]] = {}
        for user in node.users:
            elements.setdefault(user.args[1], []).append(user)
        found = [(there, elements.get(twin.own + k, [])) for k, there in enumerate(targets) if there is not None]
    if any(len(results) > 1 or not isinstance(there, fx.Node) for there, results in found):
        return None
    return [(there, results[0] if results else None) for there, results in found]


def _keep_own(node: fx.Node, own: int) -> None:
    """A twin returns the first results alone."""
    value = node.meta["val"]
    node.meta["val"] = tuple(value[:own]) if own > 1 else value[0] if own else None
    for element in list(node.users) if own == 1 else ():
        element.replace_all_uses_with(node)
        node.graph.erase_node(element)
