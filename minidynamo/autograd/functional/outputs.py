"""Owns the results of a compiled graph: the returned values, and the plan for the user's outputs.

The graph does not return inputs, views of inputs, or views of other outputs. The runtime makes these outputs from the
real tensors, so memory and gradient history are shared as in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Literal

import torch
from torch import fx

from minidynamo.autograd.functional.functional_graph import FunctionalGraph, Value
from minidynamo.autograd.functional.joint_graph import ancestors
from minidynamo.autograd.functional.written_inputs import InputWrite, memory_of
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.mutation import is_view
from minidynamo.autograd.graph.numbers import keys
from minidynamo.autograd.graph.provenance import line_of_node
from minidynamo.autograd.graph.signature import InputMutation, OutputPlan, ResultNumber, ViewStep
from minidynamo.autograd.trace.joint import Trace
from minidynamo.autograd.trace.output_alias_sets import OutputAliasSet, TracedOutput
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph.pytree import as_sequence

aten = torch.ops.aten
_ALIAS = ViewStep(aten.alias.default)


@record
class Results:
    """The results of a graph. "Result i" is `nodes[i]`."""

    #: The values that the graph returns to the runtime.
    nodes: list[fx.Node] = field(default_factory=list)
    #: Results with a tangent, in the order of the tangents.
    differentiable: list[int] = field(default_factory=list)
    #: One plan per output of the user's graph.
    outputs: list[OutputPlan] = field(default_factory=list)
    #: Tensors that several outputs are views of.
    views: list[OutputPlan] = field(default_factory=list)
    #: One per written input.
    mutations: list[InputMutation] = field(default_factory=list)
    #: Writes that the graph itself performs.
    input_writes: list[InputWrite] = field(default_factory=list)
    #: Result -> number of writes that torch counts.
    writes: dict[int, int] = field(default_factory=dict)
    #: Results that are views in the graph, but not for the user.
    internal_views: list[int] = field(default_factory=list)

    @property
    def results_in_inputs(self) -> dict[int, int]:
        """Returns result -> input, for results that are stored in inputs; the graph does not return these results."""
        return {m.result: m.index for m in self.mutations if m.in_place and m.result is not None}


def plan_outputs(trace: Trace, functional: FunctionalGraph) -> Results:
    """Returns results, outputs and mutations of `functional`, the functional form of `trace`.

    Raises GraphRefused MD404 for outputs that share memory without a view relation.
    """
    return _Planner(trace, functional).plan()


class _Planner:
    def __init__(self, trace: Trace, functional: FunctionalGraph) -> None:
        self.trace = trace
        self.functional = functional
        self.emitter = functional.emitter
        self.results = Results()
        self.alias_sets: dict[int, tuple[int, Value]] = {}
        self.numbers: dict[fx.Node, int] = {}
        self.traced = [*trace.outputs, *trace.intermediates]
        self.views: dict[int, int] = {}
        nodes = [*trace.graph.nodes]
        self.order = {node: position for position, node in enumerate(nodes)}
        computed = ancestors(alias_set.node for alias_set in trace.alias_sets if alias_set.node is not None)
        self.last_computed = max(
            (self.order[n] for n in computed if n.op == "call_function" and not _is_view(n)), default=0
        )
        self.backward_nodes = {*nodes[nodes.index(trace.tangents[0]) : -1]} if trace.tangents else set()
        placeholders = [node for node in self.emitter.graph.nodes if node.op == "placeholder"]
        self.memory = {key for node in placeholders if (key := memory_of(node)) is not None}

    def plan(self) -> Results:
        in_place = set()
        for index in self.trace.mutated_with_grad:
            value = self.functional.inputs[index]
            new = self.functional.read(value)
            position = self.add_result(new, value.node.meta["val"], differentiable=True)
            if self.results.nodes[position] is new and self.may_write_in_place(index, new):
                in_place.add(index)
            self.results.mutations.append(InputMutation(index, position, self.write_count(index), index in in_place))
        for index, value in self.functional.inputs.items():
            if value.base.version and index not in self.trace.mutated_with_grad:
                self.results.mutations.append(InputMutation(index, None, self.write_count(index)))
        for index, new, after in self.functional.writes:
            if index not in self.trace.mutated_with_grad or index in in_place:
                self.results.input_writes.append(InputWrite(self.functional.placeholders[index], new, after))
        for index, alias_set in enumerate(self.trace.alias_sets):
            self.add_alias_set(index, alias_set)
        for traced in self.traced:
            if traced.source is not None:
                self.add_view(traced.source)
        for position, traced in enumerate(self.trace.outputs):
            view = self.views.get(position)
            plan = self.plan_output(traced) if view is None else OutputPlan("view", view)
            self.results.outputs.append(replace(plan, early=self.is_early(traced, plan)))
        return self.results

    def is_early(self, traced: TracedOutput, plan: OutputPlan) -> bool:
        """Returns whether an output is a view of an input, made before the last computation, in a program without
        writes."""
        if traced.kind != "view" or plan.detach or traced.no_grad or self.results.mutations:
            return False
        is_filled = all(step.is_filled for plan in (plan, *self.results.views) for step in plan.steps)
        return is_filled and self.order.get(traced.node, 0) < self.last_computed

    def add_view(self, position: int) -> None:
        """Plans an output, or an intermediate, as the common base of several views."""
        traced = self.traced[position]
        if position not in self.views:
            if traced.source is not None:
                self.add_view(traced.source)
            self.views[position] = len(self.results.views)
            self.results.views.append(self.plan_output(traced))

    def may_write_in_place(self, index: int, new: fx.Node) -> bool:
        """Returns whether the graph may write the final data of an input into the input, and save the input for
        backward. It must not if the program copied a tensor into the input that backward reads: eager then saves the
        source of the copy.
        """
        base = self.functional.inputs[index].base
        sources = {value.base for value in self.functional.values.values() if value.node is new} - {base}
        if not sources.isdisjoint(self.functional.read_by_backward):
            return False
        return same_layout(new.meta["val"], self.functional.placeholders[index].meta["val"])

    def write_count(self, index: int) -> int | None:
        """Returns how many writes to an input torch counts; None if the input has no version counter."""
        traced = self.trace.write_counts.get(index)
        return None if traced is None else traced + self.functional.inputs[index].base.uncounted

    def add_result(self, node: fx.Node, like: torch.Tensor, differentiable: bool) -> int:
        """Adds a result for `node`, in separate memory and with the strides of `like`; returns its position."""
        node = self.emitter.restride(node, like)
        if memory_of(node) in self.memory:
            node = self.emitter.emit(aten.clone.default, node)
        self.memory.add(memory_of(node))
        if differentiable:
            self.results.differentiable.append(len(self.results.nodes))
        self.results.nodes.append(node)
        return len(self.results.nodes) - 1

    def add_number(self, node: fx.Node) -> int:
        """Adds a result for a number that is an output, or an argument of a view; returns its position."""
        if node not in self.numbers:
            self.numbers[node] = len(self.results.nodes)
            self.results.nodes.append(node)
        return self.numbers[node]

    def resolved(self, steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
        """Returns view steps for use after the graph; numbers in the steps become results."""

        def number(node: fx.Node) -> Any:
            return ResultNumber(self.add_number(node))

        return tuple(ViewStep(s.op, fx.map_arg(s.args, number), fx.map_arg(s.kwargs, number)) for s in steps)

    def add_alias_set(self, index: int, alias_set: OutputAliasSet) -> None:
        members = [output for output in self.trace.outputs if output.kind == "member" and output.index == index]
        if alias_set.node is not None:
            value, like = self.value_of(alias_set.node), alias_set.node.meta["val"]
        else:
            first = self.value_of(members[0].node)
            value = Value(first.base, first.base.node, first.base.version)
            like = first.base.node.meta["val"]
        node = self.emitter.restride(self.functional.read(value), like)
        if value.parent is not None and not _has_same_memory_layout(
            node, like
        ):  # the view was written, and holds the computed value
            node = self.functional.viewed(value)
        if memory_of(node) in self.memory and value.parent is not None:
            node = self.copied(value)
        position = self.add_result(node, like, alias_set.requires_grad)
        self.alias_sets[index] = position, value
        if not alias_set.is_view and _is_view(self.results.nodes[position]):
            self.results.internal_views.append(position)
        writes = None if alias_set.writes is None else alias_set.writes + value.base.uncounted
        if writes or (writes == 0 and _allocates(value.base.node)):
            self.results.writes[position] = writes

    def copied(self, value: Value) -> fx.Node:
        """Returns `value` as a view of a copy of its base: the elements may overlap, or have gaps between them."""
        node = self.emitter.emit(aten.clone.default, value.base.node)
        for step in value.steps():
            node = self.emitter.emit(step.op, node, *step.args, **dict(step.kwargs))
        return node

    def is_whole_view(self, alias_set: OutputAliasSet, position: int) -> bool:
        """Returns whether an output is a view in eager, while the graph returns its whole base."""
        node = self.results.nodes[position]
        return alias_set.is_view and not (alias_set.requires_grad or node.meta["val"].is_inference() or _is_view(node))

    def value_of(self, node: Any) -> Value:
        if node not in self.functional.values:
            raise _not_rebuildable("an output is not the result of an operation", node)
        return self.functional.values[node]

    def plan_output(self, traced: TracedOutput) -> OutputPlan:
        if traced.kind == "constant":
            return OutputPlan("constant", value=traced.value)
        if traced.kind == "number":
            found = self.functional.nodes[traced.node]  # type: ignore[index]
            if not isinstance(found, fx.Node):
                return OutputPlan("constant", value=found)
            return OutputPlan("graph", self.add_number(found))
        if traced.kind == "input":
            return OutputPlan("input", traced.index)
        value = self.value_of(traced.node)
        if traced.source is not None:
            steps = steps_between(self.value_of(self.traced[traced.source].node), value)
            if steps is not None:
                return self.plan_view("view", self.views[traced.source], steps, not traced.is_view, traced)
        if traced.kind == "view":
            index = value.base.input
            if index is None:
                raise _not_rebuildable(
                    "an output shares memory with an input but is not a view of the input", traced.node
                )
            detach = not traced.is_view or (self.trace.requires_grad[index] and not traced.requires_grad)
            return self.plan_view("input", index, value.steps(), detach, traced)
        position, root = self.alias_sets[traced.index]
        alias_set = self.trace.alias_sets[traced.index]
        if traced.node is alias_set.node:
            steps = (_ALIAS,) if self.is_whole_view(alias_set, position) else ()
            is_view = bool(steps) or _is_view(self.results.nodes[position])
            return OutputPlan("graph", position, steps=steps, creation=traced.creation if is_view else None)
        steps = steps_between(root, value)
        if steps is None:
            what = "two outputs share memory, and neither is a view of the base of the other"
            raise _not_rebuildable(what, traced.node)
        detach = not traced.is_view or (alias_set.requires_grad and not traced.requires_grad)
        return self.plan_view("graph", position, steps, detach, traced)

    def plan_view(
        self,
        origin: Literal["graph", "input", "view"],
        index: int,
        steps: Sequence[ViewStep],
        detach: bool,
        traced: TracedOutput,
    ) -> OutputPlan:
        """Returns the plan of an output in the memory of another tensor."""
        resolved = self.resolved(tuple(steps))
        if traced.writes is not None and not self.is_read_by_backward(traced.node):
            return OutputPlan(origin, index, steps=resolved, writes=traced.writes)
        steps = resolved or (() if detach else (_ALIAS,))
        creation = None if detach or traced.no_grad else traced.creation
        return OutputPlan(origin, index, None, steps, detach, traced.no_grad, creation)

    def is_read_by_backward(self, node: fx.Node | None) -> bool:
        """Returns whether backward reads an output. Backward detects writes to the memory of such an output."""
        return node is None or not self.backward_nodes.isdisjoint(node.users)


def steps_between(start: Value, end: Value) -> tuple[ViewStep, ...] | None:
    """Returns the view steps from `start` to `end`; None if `end` is not a view of `start`."""
    before, steps = start.steps(), end.steps()
    if start.base is not end.base or steps[: len(before)] != before:
        return None
    return steps[len(before) :]


def _is_view(node: fx.Node) -> bool:
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return isinstance(node.target, OpOverload) and is_view(node.target)


def _allocates(node: fx.Node) -> bool:
    """Returns whether an operator creates a tensor without tensor arguments.

    Such an operator fills new memory, and torch counts the write only when the operator is called.
    """
    if not isinstance(node.target, OpOverload):
        return False
    return not any("Tensor" in str(argument.type) for argument in node.target._schema.arguments)


def _has_same_memory_layout(node: fx.Node, like: torch.Tensor) -> bool:
    """Returns whether the elements of `node` have the positions of `like`'s elements, in a storage of the same size."""
    value = node.meta["val"]
    extents = [(t.storage_offset(), t.untyped_storage().nbytes()) for t in (value, like)]
    return same_layout(value, like) and keys(extents[0]) == keys(extents[1])


def _not_rebuildable(what: str, node: Any) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD404",
            what,
            why="The runtime makes such outputs again from the real tensors, through view operations.",
            fix="Return a copy: `return x, x.t().clone()`.",
            where=line_of_node(node),
        )
    )


def result_strides(captured: fx.Graph, results: Results) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns `GraphSignature.result_strides`: the strides of results where graph and program differ invisibly.

    Strides may differ for dimensions of size 1 and for tensors without elements. Symbolic strides are skipped.
    """
    strides: dict[int, tuple[int, ...]] = {}
    returned: Any = captured.output_node().args[0]
    for node, plan in zip(as_sequence(returned), results.outputs):
        expected = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if plan.origin != "graph" or plan.steps or not isinstance(expected, torch.Tensor):
            continue
        result = results.nodes[plan.index].meta["val"]
        if result.layout is expected.layout is torch.strided and _differ_invisibly(result, expected):
            strides[plan.index] = tuple(expected.stride())
    return tuple(strides.items())


def _differ_invisibly(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Returns whether two tensors of one shape have different strides, but only where no address depends on the
    strides."""
    dims = [*zip(result.shape, result.stride(), expected.stride())]
    if keys(result.shape) != keys(expected.shape) or any(
        type(stride) is not int for _, *pair in dims for stride in pair
    ):
        return False
    is_empty = any(type(size) is int and size == 0 for size in result.shape)
    differing = [size for size, stride, expected_stride in dims if stride != expected_stride]
    return bool(differing) and (is_empty or all(type(size) is int and size == 1 for size in differing))
