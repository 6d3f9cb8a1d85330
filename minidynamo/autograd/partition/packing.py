"""Owns the user's hooks for saved tensors as parts of graphs: tensors are packed in forward and unpacked in backward.

A tensor is packed directly after the last use in forward, and unpacked directly before the first use in backward; in
between, the tensor is dead. `graph/saved_tensor_hooks.py` finds the hooks, `hook_graphs.py` traces a hook, and
`partition.py` has split the graph before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import ancestors, is_effect
from minidynamo.autograd.functional.written_inputs import may_alias_arguments, memory_of
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.layouts import GradientLayout, written_layout
from minidynamo.autograd.graph.numbers import is_number, keys
from minidynamo.autograd.graph.recomputation import is_view_or_item, operation_of
from minidynamo.autograd.graph.signature import GraphSignature, SavedIndex, Unpacked
from minidynamo.autograd.layout.dim_order import laid_out
from minidynamo.autograd.partition.hook_graphs import HookGraph, HookTracer
from minidynamo.autograd.partition.minimum_cut import bytes_of
from minidynamo.autograd.partition.partition import Partition
from minidynamo.config import config
from minidynamo.core.records import record
from minidynamo.graph.marks import DIES, MAY_DIE, PARAMETER
from minidynamo.graph.pytree import leaves, rebuild, structure_of
from minidynamo.memory.plan import SavedValue

aten = torch.ops.aten


def mark_inputs(inputs: Iterable[fx.Node], examples: Iterable[Any]) -> None:
    """Marks parameters among the inputs, and inputs that may die in backward: inputs with a gradient function.
    `examples` are the values of the inputs."""
    for node, value in zip(inputs, examples):
        if isinstance(value, torch.nn.Parameter):
            node.meta[PARAMETER] = True
        elif isinstance(value, torch.Tensor) and compat.function_of(value) is not None:
            node.meta[MAY_DIE] = True


def saved_in_eager(functional: FunctionalGraph) -> frozenset[fx.Node]:
    """Returns the values to save because eager saves them: the forward values that gradient formulas read.

    Returns no values in mode "donated", which may save and pack different values.
    """
    if config.saved_tensors_hooks_filtering_mode == "donated":
        return frozenset()
    forward = functional.forward_nodes.difference(functional.tangents)
    backward_nodes = (node for node in functional.emitter.graph.nodes if node not in functional.forward_nodes)
    return frozenset(i for node in backward_nodes for i in node.all_input_nodes if i in forward and not is_number(i))


def pack(
    parts: Partition, results_in_inputs: Mapping[int, int], tracer: HookTracer
) -> tuple[Partition, tuple[Unpacked, ...]]:
    """Packs the saved tensors of `parts`, by `config.saved_tensors_hooks_filtering_mode`, and changes its graphs.

    Returns the new partition, and for each original saved tensor how to compute the tensor from the new saved values.
    `results_in_inputs` maps results to the inputs that store the results; forward does not return such results. Raises
    InvalidHook MD413.
    """
    return _Packing(parts, results_in_inputs, tracer).run()


@record(eq=False)
class _SavedNode:
    """A saved value."""

    #: As in `Partition.sources`.
    source: tuple[str, int]
    #: As in `Partition.saved`.
    saved: fx.Node
    #: The node of the forward graph.
    forward_node: fx.Node
    #: The input of the backward graph.
    backward_input: fx.Node
    #: The description of a tensor; None for a number.
    record: SavedValue | None
    #: Whether the value may be a view of a tensor that outlives it.
    is_view: bool = False

    @property
    def value(self) -> Any:
        """The fake value."""
        return self.forward_node.meta["val"]


class _Packing:
    def __init__(self, parts: Partition, results_in_inputs: Mapping[int, int], tracer: HookTracer) -> None:
        self.parts = parts
        self.tracer = tracer
        returned: Any = parts.forward.output_node().args[0]
        self.results = list(returned[: parts.results])
        inputs = parts.forward.find_nodes(op="placeholder")
        backward_inputs = parts.backward.find_nodes(op="placeholder")
        records = iter(parts.values)

        def in_forward(kind: str, i: int) -> fx.Node:
            if kind == "input":
                return _final_data_of(inputs[i])
            if kind == "result" and i in results_in_inputs:
                return _final_data_of(inputs[results_in_inputs[i]])
            # Forward does not return the results that are stored in inputs.
            position = parts.results + i if kind == "extra" else i - sum(result < i for result in results_in_inputs)
            output: fx.Node = returned[position]
            return output

        self.kept = []
        for (kind, i), saved, backward_input in zip(parts.sources, parts.saved, backward_inputs):
            record = None if is_number(saved) else next(records)
            is_view = kind == "extra" and i in parts.views
            self.kept.append(_SavedNode((kind, i), saved, in_forward(kind, i), backward_input, record, is_view))
        self.first_tangent = backward_inputs[len(self.kept)]
        self.mode = config.saved_tensors_hooks_filtering_mode
        parameters = [node for node in inputs if PARAMETER in node.meta]
        held = {"donated": [*inputs, *self.results], "no_static": parameters, "all": []}[self.mode]
        self.held = {memory_of(node) for node in held} - {None}

    def run(self) -> tuple[Partition, tuple[Unpacked, ...]]:
        saved_nodes: list[_SavedNode] = []
        forms: list[tuple[Any, Any]] = []
        for entry in self.kept:
            if self.is_packed(entry):
                form = self.packed(entry)
                forms.append((form, written_layout(entry.value)))
                saved_nodes += _saved_in(form)
            else:
                forms += [] if entry.record is None else [(entry, None)]
                saved_nodes.append(entry)
        # Backward expects this order: tensors before numbers, and inputs before outputs of forward.
        saved_nodes.sort(key=lambda entry: (is_number(entry.forward_node), entry.source[0] != "input"))
        return self.partition_saving(saved_nodes), tuple(
            Unpacked(_with_indices(form, saved_nodes), layout) for form, layout in forms
        )

    def is_packed(self, entry: _SavedNode) -> bool:
        """Returns whether the hooks apply to a value."""
        is_candidate = self.mode != "donated" or entry.source[0] == "extra"
        return entry.record is not None and is_candidate and memory_of(entry.forward_node) not in self.held

    def packed(self, entry: _SavedNode) -> Any:
        """Packs and unpacks a value. Returns the return value of the pack hook, with saved values as leaves."""
        assert entry.record is not None
        if memory_of(entry.forward_node) is None:
            raise self.tracer.invalid("pack", "it would get a tensor without strides", entry.record)
        traced = self.tracer.trace("pack", entry, {entry: entry.value}, entry.record)
        result_leaves = leaves(traced.returned)
        names = {
            leaf: f"{entry.saved.name}_hook_{k}" for k, leaf in enumerate(result_leaves) if isinstance(leaf, fx.Node)
        }
        env = _insert(traced, [entry.forward_node], _after_last_use(entry.forward_node), names)
        readers = [*entry.backward_input.users]
        saved_by_node = {entry.forward_node: entry}
        for node in (env[leaf] for leaf in names):
            if node not in saved_by_node:
                saved_by_node[node] = self.saved_result(entry, node)
        memories = [memory_of(node) for node in {env[leaf] for leaf in names}]
        for node, kept in saved_by_node.items():
            if memories.count(memory_of(node)) > 1:  # no value may be overwritten before the others are read
                kept.backward_input.meta.pop(DIES, None)
        saved_leaves = (saved_by_node[env[leaf]] if isinstance(leaf, fx.Node) else leaf for leaf in result_leaves)
        form = rebuild(structure_of(traced.returned), list(saved_leaves))
        if not any(kept.record for kept in _saved_in(form)):
            raise self.tracer.invalid("pack", "it returns no tensor", entry.record)
        self.unpack(entry, form, readers)
        return form

    def saved_result(self, entry: _SavedNode, node: fx.Node) -> _SavedNode:
        """Returns the saved value for a node of the forward graph that the pack hook has computed from `entry`."""
        graph = self.parts.backward
        with graph.inserting_before(entry.backward_input):
            placeholder = graph.placeholder(node.name)
        record = None
        if not is_number(node):
            assert entry.record is not None
            if DIES in entry.backward_input.meta or memory_of(node) != memory_of(entry.forward_node):
                placeholder.meta[DIES] = True
            value, op = node.meta["val"], operation_of(node)
            reason = f"your hook has packed {entry.record.name} into it, {entry.record.kind}"
            shape, where = tuple(value.shape), entry.record.user_location
            record = SavedValue(node.name, shape, value.dtype, bytes_of(value), op, where, reason)
        return _SavedNode(("extra", -1), node, node, placeholder, record, may_alias_arguments(node))

    def unpack(self, entry: _SavedNode, form: Any, readers: Sequence[fx.Node]) -> None:
        """Replaces a value by the result of the unpack hook in its `readers`."""
        assert entry.record is not None
        saved_nodes, like, graph = _saved_in(form), entry.backward_input.meta["val"], self.parts.backward
        traced = self.tracer.trace("unpack", form, {leaf: leaf.value for leaf in saved_nodes}, entry.record)
        self.check(entry, traced.returned, like)
        for leaf, node in zip(saved_nodes, traced.inputs):
            leaf.backward_input.meta["val"] = node.meta["val"]
        if readers:
            first = next(node for node in graph.nodes if node in readers)
            value = _insert(traced, [leaf.backward_input for leaf in saved_nodes], first, {})[traced.returned]
            if not same_layout(value.meta["val"], like):
                with graph.inserting_before(first):
                    value = laid_out(graph, value, like)
            for reader in readers:
                reader.replace_input_with(entry.backward_input, value)
        if entry not in saved_nodes:
            graph.erase_node(entry.backward_input)

    def check(self, entry: _SavedNode, result: Any, like: torch.Tensor) -> None:
        """Raises InvalidHook for an unpacked value that cannot replace `like`."""
        assert entry.record is not None
        value = result.meta["val"] if isinstance(result, fx.Node) else result
        what = f"it returns {type(value).__name__}, not a tensor"
        if isinstance(value, torch.Tensor):
            expected, found = ((keys(t.shape), t.dtype, t.device) for t in (like, value))
            if expected == found:
                return
            what = f"it returns {str(value.dtype).removeprefix('torch.')}{[*value.shape]} on {value.device}"
        raise self.tracer.invalid("unpack", what, entry.record)

    def partition_saving(self, kept: list[_SavedNode]) -> Partition:
        """Returns the partition that saves `kept`, in this order."""
        extras = [entry for entry in kept if entry.source[0] == "extra"]
        self.parts.forward.output_node().args = ((*self.results, *(entry.forward_node for entry in extras)),)
        for entry in kept:
            self.first_tangent.prepend(entry.backward_input)
        return replace(
            self.parts,
            saved=[entry.saved for entry in kept],
            sources=[("extra", extras.index(entry)) if entry in extras else entry.source for entry in kept],
            values=[entry.record for entry in kept if entry.record is not None],
            views=[i for i, entry in enumerate(extras) if entry.is_view],
        )


def _saved_in(form: Any) -> list[_SavedNode]:
    return list(dict.fromkeys(leaf for leaf in leaves(form) if isinstance(leaf, _SavedNode)))


def _with_indices(form: Any, saved_nodes: list[_SavedNode]) -> Any:
    """Returns `form` with positions in `saved_nodes` in place of saved values."""
    new_leaves = (
        SavedIndex(saved_nodes.index(leaf)) if isinstance(leaf, _SavedNode) else leaf for leaf in leaves(form)
    )
    return rebuild(structure_of(form), list(new_leaves))


def _final_data_of(placeholder: fx.Node) -> fx.Node:
    """Returns the node that holds the final data of an input: the last copy into the input, or the input."""
    copies = (user for user in placeholder.users if user.target is aten.copy_.default and user.args[0] is placeholder)
    return [placeholder, *copies][-1]


def _after_last_use(node: fx.Node) -> fx.Node:
    """Returns the first node after the last use of `node`, directly or through views."""
    readers, pending = {node}, [node]
    while pending:
        new_readers = {user for user in pending.pop().users if user.op != "output"} - readers
        readers |= new_readers
        pending += filter(is_view_or_item, new_readers)
    following: fx.Node = next(other for other in reversed(node.graph.nodes) if other in readers).next
    while following.op == "placeholder" or following.target is operator.getitem:
        following = following.next
    return following


def _insert(
    traced: HookGraph, arguments: Sequence[fx.Node], before: fx.Node, names: Mapping[Any, str]
) -> dict[fx.Node, fx.Node]:
    """Inserts the graph of a hook before a node; returns a map from the hook's nodes to their copies.

    `arguments` are the arguments of the hook, and `names` the names of new nodes.
    """
    env = dict(zip(traced.inputs, arguments))
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


# At run time


Unpack = Callable[[Sequence[torch.Tensor | None], Sequence[Any]], list[torch.Tensor | None]]
"""Computes the original saved tensors from the saved tensors and numbers."""


def unpacking(signature: GraphSignature, hook: Callable[[Any], torch.Tensor]) -> Unpack:
    """Returns a function that unpacks tensors outside of the backward graph, for the differentiation of backward.

    The function returns None for a tensor if a packed part has been freed.
    """
    forms = [(structure_of(entry.form), leaves(entry.form), entry.layout) for entry in signature.unpacked]
    layouts = [None if layout is None else GradientLayout(layout) for _, _, layout in forms]

    def unpacked(tensors: Sequence[torch.Tensor | None], numbers: Sequence[Any]) -> list[torch.Tensor | None]:
        saved_values = [*tensors, *numbers]
        unpacked_tensors: list[torch.Tensor | None] = []
        for (structure, form, _), layout in zip(forms, layouts):
            values = [saved_values[leaf.index] if isinstance(leaf, SavedIndex) else leaf for leaf in form]
            is_freed = any(value is None for leaf, value in zip(form, values) if isinstance(leaf, SavedIndex))
            if is_freed or layout is None:
                unpacked_tensors.append(None if is_freed else values[0])
                continue
            with torch.no_grad():
                value = hook(rebuild(structure, values))
            unpacked_tensors.append(layout(value, value.shape if layout.is_symbolic else None))
        return unpacked_tensors

    return unpacked


def readers_of_tensors(signature: GraphSignature) -> tuple[tuple[int, ...], ...]:
    """Returns `NodeGraph.readers` for the original saved tensors, in place of the packed values."""
    readers = signature.graph.readers
    if not readers or not signature.unpacked:
        return readers
    positions = (
        [leaf.index for leaf in leaves(entry.form) if isinstance(leaf, SavedIndex)] for entry in signature.unpacked
    )
    return tuple(next((readers[i] for i in indices if i < len(readers) and readers[i]), ()) for indices in positions)
