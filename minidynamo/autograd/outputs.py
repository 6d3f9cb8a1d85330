"""Owns the results of a compiled graph: which values it returns, and how the user's outputs are made from them.

Outputs that are inputs, or views of inputs or of each other, are not returned by the graph: the runtime makes them
from the real tensors, so that they share memory and gradient history as in eager.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functionalize import FunctionalGraph, Value
from minidynamo.autograd.joint import Family, Trace, TracedOutput
from minidynamo.autograd.signature import InputMutation, OutputPlan, ViewStep
from minidynamo.errors import Diagnostic, GraphRefused

aten = torch.ops.aten
_ALIAS = ViewStep(aten.alias.default)


@dataclass
class Results:
    """`nodes` are what the graph returns to the runtime; those in `differentiable` get a tangent each, in order.
    `copies` are (placeholder, new data) of inputs that the graph itself writes at its end."""

    nodes: list[fx.Node] = field(default_factory=list)
    differentiable: list[int] = field(default_factory=list)
    outputs: list[OutputPlan] = field(default_factory=list)
    mutations: list[InputMutation] = field(default_factory=list)
    copies: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)


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
        placeholders = [node for node in self.emitter.graph.nodes if node.op == "placeholder"]
        self.memory = {key for node in placeholders if (key := _memory(node)) is not None}

    def plan(self) -> Results:
        for index in self.trace.mutated_with_grad:
            value = self.functional.inputs[index]
            position = self.add(self.functional.read(value), value.node.meta["val"], differentiable=True)
            self.results.mutations.append(InputMutation(index, position))
        for index, value in self.functional.inputs.items():
            if value.base.version and index not in self.trace.mutated_with_grad:
                self.results.mutations.append(InputMutation(index, None))
                self.add_copy(index, self.functional.read(value))
        for index, family in enumerate(self.trace.families):
            self.add_family(index, family)
        self.results.outputs = [self.output(output) for output in self.trace.outputs]
        return self.results

    def add_copy(self, index: int, new: fx.Node) -> None:
        """Write `new` to an input at the end. What lies in the memory of an input may be overwritten by then."""
        if _memory(new) in self.memory:
            new = self.emitter.emit(aten.clone.default, new)
        self.results.copies.append((self.functional.placeholders[index], new))

    def add(self, node: fx.Node, like: torch.Tensor, differentiable: bool) -> int:
        """Return `node`, in memory of its own and with the strides of `like`."""
        node = self.emitter.restride(node, like)
        if _memory(node) in self.memory:
            node = self.emitter.emit(aten.clone.default, node)
        self.memory.add(_memory(node))
        if differentiable:
            self.results.differentiable.append(len(self.results.nodes))
        self.results.nodes.append(node)
        return len(self.results.nodes) - 1

    def add_family(self, index: int, family: Family) -> None:
        members = [output for output in self.trace.outputs if output.kind == "member" and output.index == index]
        if family.node is not None:
            value, like = self.value_of(family.node), family.node.meta["val"]
        else:
            first = self.value_of(members[0].node)
            value = Value(first.base, first.base.node, first.base.version)
            like = first.base.node.meta["val"]
        self.families[index] = self.add(self.functional.read(value), like, family.requires_grad), value

    def value_of(self, node: Any) -> Value:
        if node not in self.functional.values:
            raise _shares("an output is not the result of an operation")
        return self.functional.values[node]

    def output(self, traced: TracedOutput) -> OutputPlan:
        if traced.kind == "constant":
            return OutputPlan("constant", value=traced.value)
        if traced.kind == "input":
            return OutputPlan("input", traced.index)
        value = self.value_of(traced.node)
        if traced.kind == "view":
            index = value.base.input
            if index is None:
                raise _shares("an output shares memory with an input and is no view of it")
            detach = self.trace.requires_grad[index] and not traced.requires_grad
            return OutputPlan("input", index, steps=value.steps() or (_ALIAS,), detach=detach, no_grad=traced.no_grad)
        position, root = self.families[traced.index]
        family = self.trace.families[traced.index]
        if traced.node is family.node:
            return OutputPlan("graph", position)
        steps, start = value.steps(), root.steps()
        if value.base is not root.base or steps[: len(start)] != start:
            raise _shares("two outputs share memory, and neither is a view of the other's base")
        detach = family.requires_grad and not traced.requires_grad
        return OutputPlan(
            "graph", position, steps=steps[len(start) :] or (_ALIAS,), detach=detach, no_grad=traced.no_grad
        )


def _memory(node: fx.Node) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _shares(what: str) -> GraphRefused:
    return GraphRefused(
        Diagnostic(
            "MD404",
            what,
            why="The runtime makes such outputs again from the real tensors, through view operations.",
            fix="Return a copy: `return x, x.t().clone()`.",
        )
    )
