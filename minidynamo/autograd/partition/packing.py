"""Owns the user's hooks for saved tensors as parts of graphs: packed in forward, unpacked in backward.

What packs a tensor stands right behind its last use in forward, what unpacks it right in front of the first one in
backward, so that the tensor itself dies in between. Which hooks these are is known to `graph/saved_tensor_hooks.py`,
what becomes of one to `hook_graphs.py`; the graph was split by `partition.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import ancestors, is_effect
from minidynamo.autograd.functional.written_inputs import lies_in_arguments, memory_of
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.layouts import GradientLayout, written_layout
from minidynamo.autograd.graph.numbers import is_number, keys
from minidynamo.autograd.graph.recomputation import is_free, operation_of
from minidynamo.autograd.graph.signature import GraphSignature, Place, Unpacked
from minidynamo.autograd.layout.dim_order import laid_out
from minidynamo.autograd.partition.hook_graphs import HookGraph, HookTracer
from minidynamo.autograd.partition.minimum_cut import bytes_of
from minidynamo.autograd.partition.partition import Partition
from minidynamo.config import config
from minidynamo.graph.pytree import leaves, rebuild, structure_of
from minidynamo.memory.saved import SavedValue
from minidynamo.memory.unfused_peak import DIES, MAY_DIE

aten = torch.ops.aten


_PARAMETER = "parameter"
"""What inputs note that are parameters."""


def mark_inputs(inputs: Iterable[fx.Node], examples: Iterable[Any]) -> None:
    """Note which inputs, for which these values stand, are parameters, and which may die in backward: those with a
    history."""
    for node, value in zip(inputs, examples):
        if isinstance(value, torch.nn.Parameter):
            node.meta[_PARAMETER] = True
        elif isinstance(value, torch.Tensor) and compat.function_of(value) is not None:
            node.meta[MAY_DIE] = True


def kept_as_in_eager(functional: FunctionalGraph) -> frozenset[fx.Node]:
    """What is kept because eager keeps it: the values of forward that are read where gradients are computed. Nothing in
    mode "donated", where others may be kept instead, and are packed."""
    if config.saved_tensors_hooks_filtering_mode == "donated":
        return frozenset()
    forward = functional.made_forward.difference(functional.tangents)
    behind = (node for node in functional.emitter.graph.nodes if node not in functional.made_forward)
    return frozenset(i for node in behind for i in node.all_input_nodes if i in forward and not is_number(i))


def pack(parts: Partition, lying: Mapping[int, int], tracer: HookTracer) -> tuple[Partition, tuple[Unpacked, ...]]:
    """`parts`, where what forward keeps is packed, as `config.saved_tensors_hooks_filtering_mode` says; and how each
    tensor that it kept is found in what it keeps now. The graphs of `parts` are changed.

    `lying` are results that lie in inputs, so that forward does not return them, and these inputs. Raises InvalidHook
    MD413.
    """
    return _Packing(parts, lying, tracer).run()


@dataclass(eq=False)
class _Kept:
    """A value that forward keeps. `source` and `saved` are as in a Partition, `made` is the node of the forward graph,
    `given` the input of the backward graph. Of tensors there is a `record`. `is_view`: of something that lasts."""

    source: tuple[str, int]
    saved: fx.Node
    made: fx.Node
    given: fx.Node
    record: SavedValue | None
    is_view: bool = False

    @property
    def value(self) -> Any:
        """Its fake value."""
        return self.made.meta["val"]


class _Packing:
    def __init__(self, parts: Partition, lying: Mapping[int, int], tracer: HookTracer) -> None:
        self.parts = parts
        self.tracer = tracer
        returned: Any = parts.forward.output_node().args[0]
        first = parts.results
        self.results = list(returned[:first])
        inputs = parts.forward.find_nodes(op="placeholder")
        given = parts.backward.find_nodes(op="placeholder")
        records = iter(parts.values)

        def in_forward(kind: str, i: int) -> fx.Node:
            if kind == "input":
                return _end_of(inputs[i])
            if kind == "result" and i in lying:
                return _end_of(inputs[lying[i]])
            found: fx.Node = returned[first + i if kind == "extra" else i - sum(place < i for place in lying)]
            return found

        self.kept = []
        for (kind, i), saved, place in zip(parts.sources, parts.saved, given):
            record = None if is_number(saved) else next(records)
            is_view = kind == "extra" and i in parts.views
            self.kept.append(_Kept((kind, i), saved, in_forward(kind, i), place, record, is_view))
        self.first_tangent = given[len(self.kept)]
        self.mode = config.saved_tensors_hooks_filtering_mode
        parameters = [node for node in inputs if _PARAMETER in node.meta]
        held = {"donated": [*inputs, *self.results], "no_static": parameters, "all": []}[self.mode]
        self.held = {memory_of(node) for node in held} - {None}

    def run(self) -> tuple[Partition, tuple[Unpacked, ...]]:
        kept: list[_Kept] = []
        found: list[tuple[Any, Any]] = []
        for one in self.kept:
            if self.is_packed(one):
                form = self.packed(one)
                found.append((form, written_layout(one.value)))
                kept += _kept_in(form)
            else:
                found += [] if one.record is None else [(one, None)]
                kept.append(one)
        # Numbers come behind tensors, and what forward makes behind its inputs: so they arrive when it has run.
        kept.sort(key=lambda one: (is_number(one.made), one.source[0] != "input"))
        return self.keeping(kept), tuple(Unpacked(_placed(form, kept), layout) for form, layout in found)

    def is_packed(self, one: _Kept) -> bool:
        """Whether a value goes through the hooks."""
        is_candidate = self.mode != "donated" or one.source[0] == "extra"
        return one.record is not None and is_candidate and memory_of(one.made) not in self.held

    def packed(self, one: _Kept) -> Any:
        """Pack a value and unpack it. Returns the structure that the pack hook does, with what is kept as leaves."""
        assert one.record is not None
        if memory_of(one.made) is None:
            raise self.tracer.invalid("pack", "it would get a tensor without strides", one.record)
        traced = self.tracer.trace("pack", one, {one: one.value}, one.record)
        found = leaves(traced.returned)
        names = {leaf: f"{one.saved.name}_hook_{k}" for k, leaf in enumerate(found) if isinstance(leaf, fx.Node)}
        env = _copied(traced, [one.made], _behind_last_use(one.made), names)
        readers = [*one.given.users]
        made = {one.made: one}
        for node in (env[leaf] for leaf in names):
            if node not in made:
                made[node] = self.made_of(one, node)
        memories = [memory_of(node) for node in {env[leaf] for leaf in names}]
        for node, kept in made.items():
            if memories.count(memory_of(node)) > 1:  # none may be written over before the other has been read
                kept.given.meta.pop(DIES, None)
        kinds = (made[env[leaf]] if isinstance(leaf, fx.Node) else leaf for leaf in found)
        form = rebuild(structure_of(traced.returned), list(kinds))
        if not any(kept.record for kept in _kept_in(form)):
            raise self.tracer.invalid("pack", "it returns no tensor", one.record)
        self.unpack(one, form, readers)
        return form

    def made_of(self, one: _Kept, node: fx.Node) -> _Kept:
        """What is kept of a value: a node of the forward graph that has been computed from it."""
        graph = self.parts.backward
        with graph.inserting_before(one.given):
            given = graph.placeholder(node.name)
        record = None
        if not is_number(node):
            assert one.record is not None
            if DIES in one.given.meta or memory_of(node) != memory_of(one.made):
                given.meta[DIES] = True
            value, op = node.meta["val"], operation_of(node)
            reason = f"your hook has packed {one.record.name} into it, {one.record.kind}"
            shape, where = tuple(value.shape), one.record.user_location
            record = SavedValue(node.name, shape, value.dtype, bytes_of(value), op, where, reason)
        return _Kept(("extra", -1), node, node, given, record, lies_in_arguments(node))

    def unpack(self, one: _Kept, form: Any, readers: Sequence[fx.Node]) -> None:
        """Let `readers` of a value read what the unpack hook makes of it."""
        assert one.record is not None
        kept, like, graph = _kept_in(form), one.given.meta["val"], self.parts.backward
        traced = self.tracer.trace("unpack", form, {leaf: leaf.value for leaf in kept}, one.record)
        self.check(one, traced.returned, like)
        for leaf, node in zip(kept, traced.inputs):
            leaf.given.meta["val"] = node.meta["val"]
        if readers:
            first = next(node for node in graph.nodes if node in readers)
            value = _copied(traced, [leaf.given for leaf in kept], first, {})[traced.returned]
            if not same_layout(value.meta["val"], like):
                with graph.inserting_before(first):
                    value = laid_out(graph, value, like)
            for reader in readers:
                reader.replace_input_with(one.given, value)
        if one not in kept:
            graph.erase_node(one.given)

    def check(self, one: _Kept, result: Any, like: torch.Tensor) -> None:
        """Raise InvalidHook for an unpacked value that cannot take the place of `like`."""
        assert one.record is not None
        value = result.meta["val"] if isinstance(result, fx.Node) else result
        what = f"it returns {type(value).__name__}, not a tensor"
        if isinstance(value, torch.Tensor):
            wanted, came = ((keys(t.shape), t.dtype, t.device) for t in (like, value))
            if wanted == came:
                return
            what = f"it returns {str(value.dtype).removeprefix('torch.')}{[*value.shape]} on {value.device}"
        raise self.tracer.invalid("unpack", what, one.record)

    def keeping(self, kept: list[_Kept]) -> Partition:
        """The graphs that keep these values, in this order."""
        extras = [one for one in kept if one.source[0] == "extra"]
        self.parts.forward.output_node().args = ((*self.results, *(one.made for one in extras)),)
        for one in kept:
            self.first_tangent.prepend(one.given)
        return replace(
            self.parts,
            saved=[one.saved for one in kept],
            sources=[("extra", extras.index(one)) if one in extras else one.source for one in kept],
            values=[one.record for one in kept if one.record is not None],
            views=[i for i, one in enumerate(extras) if one.is_view],
        )


def _kept_in(form: Any) -> list[_Kept]:
    return list(dict.fromkeys(leaf for leaf in leaves(form) if isinstance(leaf, _Kept)))


def _placed(form: Any, kept: list[_Kept]) -> Any:
    """`form` with places in `kept` instead of what lies there."""
    found = (Place(kept.index(leaf)) if isinstance(leaf, _Kept) else leaf for leaf in leaves(form))
    return rebuild(structure_of(form), list(found))


def _end_of(given: fx.Node) -> fx.Node:
    """The node that holds what an input does in the end: what was last copied into it."""
    copies = (user for user in given.users if user.target is aten.copy_.default and user.args[0] is given)
    return [given, *copies][-1]


def _behind_last_use(node: fx.Node) -> fx.Node:
    """The node in front of which nobody reads `node` any more, through views or not."""
    readers, pending = {node}, [node]
    while pending:
        found = {user for user in pending.pop().users if user.op != "output"} - readers
        readers |= found
        pending += filter(is_free, found)
    behind: fx.Node = next(other for other in reversed(node.graph.nodes) if other in readers).next
    while behind.op == "placeholder" or behind.target is operator.getitem:
        behind = behind.next
    return behind


def _copied(
    traced: HookGraph, given: Sequence[fx.Node], before: fx.Node, names: Mapping[Any, str]
) -> dict[fx.Node, fx.Node]:
    """Put the graph of a hook that is given these nodes in front of a node; gives what became of its nodes."""
    env = dict(zip(traced.inputs, given))
    returned = [leaf for leaf in leaves(traced.returned) if isinstance(leaf, fx.Node)]
    needed = ancestors([*returned, *filter(is_effect, traced.graph.nodes)])
    with before.graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node in needed and node not in env:
                args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
                name = names.get(node, node.name)
                env[node] = before.graph.create_node(node.op, node.target, args, kwargs, name)
                env[node].meta.update(node.meta)
    return env


# When the graphs run


Unpack = Callable[[Sequence[torch.Tensor | None], Sequence[Any]], list[torch.Tensor | None]]
"""Makes, of the tensors and numbers that are kept, the tensors that were to be kept."""


def unpacking(signature: GraphSignature, hook: Callable[[Any], torch.Tensor]) -> Unpack:
    """For those who take the tensors outside of the backward graph, to differentiate it. A tensor is None if something
    that it was packed into is gone."""
    found = [(structure_of(one.form), leaves(one.form), one.layout) for one in signature.unpacked]
    layouts = [None if layout is None else GradientLayout(layout) for _, _, layout in found]

    def unpacked(tensors: Sequence[torch.Tensor | None], numbers: Sequence[Any]) -> list[torch.Tensor | None]:
        kept = [*tensors, *numbers]
        made: list[torch.Tensor | None] = []
        for (structure, form, _), layout in zip(found, layouts):
            values = [kept[leaf.index] if isinstance(leaf, Place) else leaf for leaf in form]
            gone = any(value is None for leaf, value in zip(form, values) if isinstance(leaf, Place))
            if gone or layout is None:
                made.append(None if gone else values[0])
                continue
            with torch.no_grad():
                value = hook(rebuild(structure, values))
            made.append(layout(value, value.shape if layout.is_symbolic else None))
        return made

    return unpacked


def kept_for_tensors(signature: GraphSignature) -> tuple[tuple[int, ...], ...]:
    """`signature.kept_for` of the tensors that were packed, instead of what they were packed into."""
    if not signature.kept_for or not signature.unpacked:
        return signature.kept_for
    apart = dict(enumerate(signature.kept_for))
    places = ([leaf.index for leaf in leaves(one.form) if isinstance(leaf, Place)] for one in signature.unpacked)
    return tuple(next((apart[i] for i in found if apart.get(i)), ()) for found in places)
