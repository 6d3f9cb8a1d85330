"""Owns the values of a graph without mutation: what each tensor of the traced graph is now, and how it is written.

Each tensor of the traced graph is a view (through a chain of steps, often none) of a base; a base has a current value,
and writing through a view makes a new one. Views that are read after such a write are made again from the new value.
Which operations read and write is known to `functionalize.py`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder, has_strides_of, is_dense
from minidynamo.autograd.graph.overlaps import overlaps_itself
from minidynamo.autograd.graph.signature import ViewStep
from minidynamo.autograd.graph.views import ELEMENT_INVERSES, INVERSES
from minidynamo.compat import OpOverload
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.memory.unfused_peak import WRITTEN

OVERLAPS = "a tensor is written whose elements share memory"  # as fill_, zero_ and index_fill_ do


@dataclass(eq=False)
class Base:
    """Memory: the value it holds now, how often it was written, and which input it is, if any. `uncounted` are writes
    that torch counts for real tensors only. Memory that was resized has `nbytes` by now, and had none at all in the
    beginning if it `was_empty`; then it may hold no data (`has_data`) until something is written to it."""

    node: fx.Node
    input: int | None = None
    version: int = 0
    uncounted: int = 0
    nbytes: Any = None
    was_empty: bool = False
    has_data: bool = True


@dataclass(eq=False)
class Value:
    """A tensor of the traced graph: the view `step` of `parent`, or a whole base when it has no parent. `node` holds it
    as of `version` of the base."""

    base: Base
    node: fx.Node
    version: int
    parent: Value | None = None
    step: ViewStep | None = None

    def steps(self) -> tuple[ViewStep, ...]:
        """The chain of views from the base to this tensor."""
        if self.parent is None or self.step is None:
            return ()
        return (*self.parent.steps(), self.step)


@dataclass
class FunctionalGraph:
    """The traced graph without mutation. `values` tells which tensor a traced node stood for, `nodes` which node holds
    what is no single tensor. `inputs` are the values of the flat inputs that are tensors, `placeholders` the nodes of
    all of them; `constants` are tensors of the user's code that became extra placeholders. `made_forward` are the nodes
    that were there when the first gradient was computed, `read_behind` the memories read since then. `writes` are those
    to inputs, in order: which one, what it holds then, and the node behind which it was written; `forgotten` is
    what was written to memory that went away again."""

    emitter: GraphBuilder
    placeholders: list[fx.Node] = field(default_factory=list)
    inputs: dict[int, Value] = field(default_factory=dict)
    tangents: list[fx.Node] = field(default_factory=list)
    constants: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    values: dict[fx.Node, Value] = field(default_factory=dict)
    nodes: dict[fx.Node, Any] = field(default_factory=dict)
    made_forward: frozenset[fx.Node] = frozenset()
    read_behind: set[Base] = field(default_factory=set)
    writes: list[tuple[int, fx.Node, fx.Node]] = field(default_factory=list)
    forgotten: list[fx.Node] = field(default_factory=list)

    def read(self, value: Value) -> fx.Node:
        """The node that holds `value` now; made again from the base if that was written."""
        if value.version != value.base.version:
            if value.parent is None or value.step is None:
                value.node = value.base.node
            else:
                step = value.step
                value.node = self.emitter.emit(step.op, self.read(value.parent), *step.args, **dict(step.kwargs))
            value.version = value.base.version
        return value.node

    def viewed(self, value: Value) -> fx.Node:
        """`value` as a view of its base now, also where `read` finds what was written to it, in memory of its own."""
        if value.parent is None or value.step is None:
            return value.base.node
        step = value.step
        return self.emitter.emit(step.op, self.viewed(value.parent), *step.args, **dict(step.kwargs))

    def to_draw(self, op: OpOverload, into: dict[str, torch.Tensor], now: dict[str, Any]) -> dict[str, fx.Node]:
        """What `op` takes `now` of the tensors that it draws numbers `into`, laid out as those: that decides which
        number goes where. An output is no argument of what draws instead, which fills its result row by row."""
        laid_out = {name: self.emitter.restride(now[name], like) for name, like in into.items() if name in now}
        for name, like in into.items():
            made = laid_out.get(name)
            same = like.is_contiguous() if made is None else has_strides_of(made.meta["val"], like)
            # Where there are gaps, `normal_` draws in another way.
            if not same or (op is torch.ops.aten.normal_.default and not is_dense(like)):
                raise refuse(f"`{op}` draws into memory that is laid out in a way that values are not")
        return laid_out

    def write(self, value: Value, new: fx.Node) -> None:
        """Give the memory of `value` the data of `new`, which has its shape and dtype."""
        if overlaps_itself(value.node.meta["val"]):
            raise refuse(OVERLAPS)
        if value.parent is None:
            new = self.emitter.restride(new, value.node.meta["val"])  # views rely on the strides of their base
            value.base.node = new
            value.base.version += 1
            value.base.has_data = True
            if value.base.input is not None:
                self.writes.append((value.base.input, new, next(iter(reversed(self.emitter.graph.nodes)))))
        else:
            self.write(*self.scattered(value, new))
        if value.parent is None or value.base.input is None:  # what lies in an input is read from there
            value.node, value.version = new, value.base.version

    def scattered(self, value: Value, new: fx.Node) -> tuple[Value, fx.Node]:
        """The tensor that `value` is a view of, and its data once the view has that of `new`."""
        step, parent = value.step, value.parent
        assert step is not None and parent is not None
        if step.op is operator.getitem and parent.parent is not None and parent.step is not None:
            viewed, op = parent.parent, parent.step.op
            node = self.read(viewed)
            if (rule := ELEMENT_INVERSES.get(op)) is not None:  # type: ignore[call-overload]
                scatter, *args = rule(self.emitter, *step.args, *parent.step.args, **dict(parent.step.kwargs))
                return viewed, _in_its_place(self.emitter.emit(scatter, node, new, *args), node)
        else:
            viewed, op = parent, step.op
            inverse = INVERSES.get(op)  # type: ignore[call-overload]
            if inverse is not None:
                node = self.read(viewed)
                made = inverse(self.emitter, node, new, *step.args, **dict(step.kwargs))
                return viewed, _in_its_place(made, node)
        raise refuse(f"a tensor is written through `{op}`, a view whose inverse is not known")


def _in_its_place(made: fx.Node, viewed: fx.Node) -> fx.Node:
    """`made`, of which it is noted, if it is a copy of `viewed` with another part, that eager writes that part."""
    if made is not viewed and made.args[0] is viewed:
        made.meta[WRITTEN] = {0: 0}
    return made


def refuse(what: str) -> GraphRefused:
    """The error for a mutation that has no functional form."""
    return GraphRefused(
        Diagnostic(
            "MD402",
            what,
            why="Compiled graphs compute values; this write cannot be turned into one.",
            fix="Write `x = x.op()` instead of `x.op_()`, or keep this function out: `@minidynamo.disable`.",
        )
    )
