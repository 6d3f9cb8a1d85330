"""Owns the results of a compiled graph: which values it returns, and how the user's outputs are made from them.

Outputs that are inputs, or views of inputs or of each other, are not returned by the graph: the runtime makes them
from the real tensors, so that they share memory and gradient history as in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import fx

from minidynamo.autograd.functional.functional_graph import FunctionalGraph, Value
from minidynamo.autograd.functional.joint_graph import ancestors
from minidynamo.autograd.functional.written_inputs import InputWrite, memory_of
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.mutation import is_view
from minidynamo.autograd.graph.numbers import keys
from minidynamo.autograd.graph.signature import InputMutation, OutputPlan, ResultNumber, ViewStep
from minidynamo.autograd.trace.joint import Trace
from minidynamo.autograd.trace.output_alias_sets import OutputAliasSet, TracedOutput
from minidynamo.compat import OpOverload
from minidynamo.errors import Diagnostic, GraphRefused

aten = torch.ops.aten
_ALIAS = ViewStep(aten.alias.default)


@dataclass
class Results:
    """`nodes` are what the graph returns to the runtime; those in `differentiable` get a tangent each, in order.
    `input_writes` are those that the graph itself carries out; `writes` is how often torch counts a result as written;
    those in `no_views` are views in the graph, but not for the user; outputs are made of `views`."""

    nodes: list[fx.Node] = field(default_factory=list)
    differentiable: list[int] = field(default_factory=list)
    outputs: list[OutputPlan] = field(default_factory=list)
    views: list[OutputPlan] = field(default_factory=list)
    mutations: list[InputMutation] = field(default_factory=list)
    input_writes: list[InputWrite] = field(default_factory=list)
    writes: dict[int, int] = field(default_factory=dict)
    no_views: list[int] = field(default_factory=list)

    @property
    def lying(self) -> dict[int, int]:
        """The positions of results that lie in inputs, each with its input: the graph does not return them."""
        return {m.result: m.index for m in self.mutations if m.in_place and m.result is not None}


def plan_outputs(trace: Trace, functional: FunctionalGraph) -> Results:
    """Results, outputs and mutations of `functional`, the functional form of `trace`.

    Raises GraphRefused MD404 for outputs that share memory without being views of one another.
    """
    return _Planner(trace, functional).plan()


class _Planner:
    def __init__(self, trace: Trace, functional: FunctionalGraph) -> None:
        self.trace = trace
        self.functional = functional
        self.emitter = functional.emitter
        self.results = Results()
        self.families: dict[int, tuple[int, Value]] = {}
        self.numbers: dict[fx.Node, int] = {}
        self.traced = [*trace.outputs, *trace.between]
        self.views: dict[int, int] = {}
        nodes = [*trace.graph.nodes]
        self.order = {node: place for place, node in enumerate(nodes)}
        computed = ancestors(family.node for family in trace.families if family.node is not None)
        self.last_computed = max(
            (self.order[n] for n in computed if n.op == "call_function" and not _is_view(n)), default=0
        )
        self.read_behind = {*nodes[nodes.index(trace.tangents[0]) : -1]} if trace.tangents else set()
        placeholders = [node for node in self.emitter.graph.nodes if node.op == "placeholder"]
        self.memory = {key for node in placeholders if (key := memory_of(node)) is not None}

    def plan(self) -> Results:
        in_place = set()
        for index in self.trace.mutated_with_grad:
            value = self.functional.inputs[index]
            new = self.functional.read(value)
            position = self.add(new, value.node.meta["val"], differentiable=True)
            if self.results.nodes[position] is new and self.may_lie_in(index, new):
                in_place.add(index)
            self.results.mutations.append(InputMutation(index, position, self.writes(index), index in in_place))
        for index, value in self.functional.inputs.items():
            if value.base.version and index not in self.trace.mutated_with_grad:
                self.results.mutations.append(InputMutation(index, None, self.writes(index)))
        for index, new, behind in self.functional.writes:
            if index not in self.trace.mutated_with_grad or index in in_place:
                self.results.input_writes.append(InputWrite(self.functional.placeholders[index], new, behind))
        for index, family in enumerate(self.trace.families):
            self.add_family(index, family)
        for traced in self.traced:
            if traced.source is not None:
                self.add_view(traced.source)
        for place, traced in enumerate(self.trace.outputs):
            known = self.views.get(place)
            plan = self.output(traced) if known is None else OutputPlan("view", known)
            self.results.outputs.append(replace(plan, early=self.is_early(traced, plan)))
        return self.results

    def is_early(self, traced: TracedOutput, plan: OutputPlan) -> bool:
        """Whether an output is a view of an input that the program makes before it has computed all else, and writes to
        nothing."""
        if traced.kind != "view" or plan.detach or traced.no_grad or self.results.mutations:
            return False
        known = all(step.is_filled for plan in (plan, *self.results.views) for step in plan.steps)
        return known and self.order.get(traced.node, 0) < self.last_computed

    def add_view(self, place: int) -> None:
        """Have an output, or what stands between, made once for all that are views of it."""
        traced = self.traced[place]
        if place not in self.views:
            if traced.source is not None:
                self.add_view(traced.source)
            self.views[place] = len(self.results.views)
            self.results.views.append(self.output(traced))

    def may_lie_in(self, index: int, new: fx.Node) -> bool:
        """Whether what an input holds in the end may be written by the graph, and be kept for backward there: of what
        was copied into the input, eager keeps the source where backward reads that."""
        base = self.functional.inputs[index].base
        others = {value.base for value in self.functional.values.values() if value.node is new} - {base}
        if not others.isdisjoint(self.functional.read_behind):
            return False
        return same_layout(new.meta["val"], self.functional.placeholders[index].meta["val"])

    def writes(self, index: int) -> int | None:
        """How often torch counts an input as written; None if it does not count."""
        traced = self.trace.writes.get(index)
        return None if traced is None else traced + self.functional.inputs[index].base.uncounted

    def add(self, node: fx.Node, like: torch.Tensor, differentiable: bool) -> int:
        """Return `node`, in memory of its own and with the strides of `like`."""
        node = self.emitter.restride(node, like)
        if memory_of(node) in self.memory:
            node = self.emitter.emit(aten.clone.default, node)
        self.memory.add(memory_of(node))
        if differentiable:
            self.results.differentiable.append(len(self.results.nodes))
        self.results.nodes.append(node)
        return len(self.results.nodes) - 1

    def add_number(self, node: fx.Node) -> int:
        """Return a number, to the user or for a view that is made behind the graph."""
        if node not in self.numbers:
            self.numbers[node] = len(self.results.nodes)
            self.results.nodes.append(node)
        return self.numbers[node]

    def resolved(self, steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
        """Views as they are made behind the graph, which returns the numbers in them."""

        def number(node: fx.Node) -> Any:
            return ResultNumber(self.add_number(node))

        return tuple(ViewStep(s.op, fx.map_arg(s.args, number), fx.map_arg(s.kwargs, number)) for s in steps)

    def add_family(self, index: int, family: OutputAliasSet) -> None:
        members = [output for output in self.trace.outputs if output.kind == "member" and output.index == index]
        if family.node is not None:
            value, like = self.value_of(family.node), family.node.meta["val"]
        else:
            first = self.value_of(members[0].node)
            value = Value(first.base, first.base.node, first.base.version)
            like = first.base.node.meta["val"]
        node = self.emitter.restride(self.functional.read(value), like)
        if value.parent is not None and not _lies_like(node, like):  # it was written, and is what was computed
            node = self.functional.viewed(value)
        if memory_of(node) in self.memory and value.parent is not None:
            node = self.copied(value)
        position = self.add(node, like, family.requires_grad)
        self.families[index] = position, value
        if not family.is_view and _is_view(self.results.nodes[position]):
            self.results.no_views.append(position)
        writes = None if family.writes is None else family.writes + value.base.uncounted
        if writes or (writes == 0 and _fills(value.base.node)):
            self.results.writes[position] = writes

    def copied(self, value: Value) -> fx.Node:
        """`value` as a view of a copy of its base: its elements may overlap, or have gaps between them."""
        node = self.emitter.emit(aten.clone.default, value.base.node)
        for step in value.steps():
            node = self.emitter.emit(step.op, node, *step.args, **dict(step.kwargs))
        return node

    def is_whole_view(self, family: OutputAliasSet, position: int) -> bool:
        """Whether torch knows what an output is a view of, but the graph returns that itself, all of which it is."""
        node = self.results.nodes[position]
        return family.is_view and not (family.requires_grad or node.meta["val"].is_inference() or _is_view(node))

    def value_of(self, node: Any) -> Value:
        if node not in self.functional.values:
            raise _shares("an output is not the result of an operation")
        return self.functional.values[node]

    def output(self, traced: TracedOutput) -> OutputPlan:
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
                return self.shared("view", self.views[traced.source], steps, not traced.is_view, traced)
        if traced.kind == "view":
            index = value.base.input
            if index is None:
                raise _shares("an output shares memory with an input and is no view of it")
            detach = not traced.is_view or (self.trace.requires_grad[index] and not traced.requires_grad)
            return self.shared("input", index, value.steps(), detach, traced)
        position, root = self.families[traced.index]
        family = self.trace.families[traced.index]
        if traced.node is family.node:
            steps = (_ALIAS,) if self.is_whole_view(family, position) else ()
            is_view = bool(steps) or _is_view(self.results.nodes[position])
            return OutputPlan("graph", position, steps=steps, creation=traced.creation if is_view else None)
        steps = steps_between(root, value)
        if steps is None:
            raise _shares("two outputs share memory, and neither is a view of the other's base")
        detach = not traced.is_view or (family.requires_grad and not traced.requires_grad)
        return self.shared("graph", position, steps, detach, traced)

    def shared(
        self,
        origin: Literal["graph", "input", "view"],
        index: int,
        steps: Sequence[ViewStep],
        detach: bool,
        traced: TracedOutput,
    ) -> OutputPlan:
        """An output in the memory of another tensor."""
        resolved = self.resolved(tuple(steps))
        if traced.writes is not None and not self.is_read_behind(traced.node):
            return OutputPlan(origin, index, steps=resolved, writes=traced.writes)
        steps = resolved or (() if detach else (_ALIAS,))
        creation = None if detach or traced.no_grad else traced.creation
        return OutputPlan(origin, index, None, steps, detach, traced.no_grad, creation)

    def is_read_behind(self, node: fx.Node | None) -> bool:
        """Whether backward needs an output: that notices writes to the tensor that it lies in."""
        return node is None or not self.read_behind.isdisjoint(node.users)


def steps_between(start: Value, end: Value) -> tuple[ViewStep, ...] | None:
    """How `end` is made as a view of `start`; None if it is no view of that."""
    before, steps = start.steps(), end.steps()
    if start.base is not end.base or steps[: len(before)] != before:
        return None
    return steps[len(before) :]


def _is_view(node: fx.Node) -> bool:
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return isinstance(node.target, OpOverload) and is_view(node.target)


def _fills(node: fx.Node) -> bool:
    """Whether it makes a tensor of no other: by writing to it, which torch counts only when the operator is called."""
    if not isinstance(node.target, OpOverload):
        return False
    return not any("Tensor" in str(argument.type) for argument in node.target._schema.arguments)


def _lies_like(node: fx.Node, like: torch.Tensor) -> bool:
    """Whether the elements of `node` lie in memory as large as that of `like`, at the same places."""
    value = node.meta["val"]
    places = [(t.storage_offset(), t.untyped_storage().nbytes()) for t in (value, like)]
    return same_layout(value, like) and keys(places[0]) == keys(places[1])


def _shares(what: str) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD404",
            what,
            why="The runtime makes such outputs again from the real tensors, through view operations.",
            fix="Return a copy: `return x, x.t().clone()`.",
        )
    )


def result_strides(captured: fx.Graph, results: Results) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """For `GraphSignature.result_strides`: where the operations of a graph lay out dimensions of one element, or a
    tensor without elements, otherwise than what the program called. Strides that vary are left."""
    found: dict[int, tuple[int, ...]] = {}
    returned: Any = captured.output_node().args[0]
    for node, plan in zip(returned if isinstance(returned, (tuple, list)) else (returned,), results.outputs):
        wanted = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if plan.origin != "graph" or plan.steps or not isinstance(wanted, torch.Tensor):
            continue
        made = results.nodes[plan.index].meta["val"]
        if made.layout is wanted.layout is torch.strided and _differ_unseen(made, wanted):
            found[plan.index] = tuple(wanted.stride())
    return tuple(found.items())


def _differ_unseen(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors of one shape have other strides, but not where an address hangs on them."""
    dims = [*zip(made.shape, made.stride(), wanted.stride())]
    if keys(made.shape) != keys(wanted.shape) or any(type(stride) is not int for _, *pair in dims for stride in pair):
        return False
    is_empty = any(type(size) is int and size == 0 for size in made.shape)
    apart = [size for size, one, other in dims if one != other]
    return bool(apart) and (is_empty or all(type(size) is int and size == 1 for size in apart))
