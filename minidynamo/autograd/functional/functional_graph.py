"""Owns the values of a graph without mutation: the current value of each traced tensor, and the effect of a write.

Each traced tensor is a view of a base, through zero or more view steps. A base has a current value, and a write through
a view creates a new value of the base. A view that is read after the write is computed again from the new value.
`functionalize.py` knows which operations read and write.
"""

from __future__ import annotations

import operator
from dataclasses import field
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder, has_strides_of, is_dense
from minidynamo.autograd.graph.provenance import line_of_node
from minidynamo.autograd.graph.signature import ViewStep
from minidynamo.autograd.graph.views import ELEMENT_INVERSES, INVERSES, overlaps_itself
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph.marks import WRITTEN

OVERLAPS = "a tensor whose elements share memory is written"


@record(eq=False)
class Base:
    """A block of memory, with its current value."""

    #: The current value.
    node: fx.Node
    #: Position of the flat input, if the memory belongs to an input.
    input: int | None = None
    #: Number of writes.
    version: int = 0
    #: Number of writes that torch counts for real tensors, but not for fake tensors.
    uncounted: int = 0
    #: Current size in bytes, if the storage was resized.
    nbytes: Any = None
    #: Whether the storage had size 0 before its first resize.
    was_empty: bool = False
    #: False after a resize, until a write fills the memory.
    has_data: bool = True


@record(eq=False)
class Value:
    """A traced tensor: a view of another value, or a whole base."""

    base: Base
    #: The node that holds the tensor as of `version` of the base.
    node: fx.Node
    version: int
    #: The viewed value; None for a whole base.
    parent: Value | None = None
    #: The view operation, applied to `parent`.
    step: ViewStep | None = None

    def steps(self) -> tuple[ViewStep, ...]:
        """Returns the chain of views from the base to this tensor."""
        if self.parent is None or self.step is None:
            return ()
        return (*self.parent.steps(), self.step)


@record
class FunctionalGraph:
    """The traced graph without mutation."""

    emitter: GraphBuilder
    #: One placeholder per flat input.
    placeholders: list[fx.Node] = field(default_factory=list)
    #: Flat input -> value, for tensor inputs.
    inputs: dict[int, Value] = field(default_factory=dict)
    #: One placeholder per tangent.
    tangents: list[fx.Node] = field(default_factory=list)
    #: Extra placeholder -> tensor that the user's code holds.
    constants: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    #: Traced node -> value, for single tensors.
    values: dict[fx.Node, Value] = field(default_factory=dict)
    #: Traced node -> functional node(s) or constant, for numbers and for operations with several results.
    nodes: dict[fx.Node, Any] = field(default_factory=dict)
    #: The nodes that existed before the first gradient was computed.
    forward_nodes: frozenset[fx.Node] = frozenset()
    #: The bases that were read after that point.
    read_by_backward: set[Base] = field(default_factory=set)
    #: Writes to inputs, in order: the flat input, its new data, and the node after which the write happens.
    writes: list[tuple[int, fx.Node, fx.Node]] = field(default_factory=list)
    #: Data written to memory that was later freed by a resize.
    discarded: list[fx.Node] = field(default_factory=list)

    def read(self, value: Value) -> fx.Node:
        """Returns the node that holds `value` now, computed again from the base if the base was written."""
        if value.version != value.base.version:
            if value.parent is None or value.step is None:
                value.node = value.base.node
            else:
                step = value.step
                value.node = self.emitter.emit(step.op, self.read(value.parent), *step.args, **dict(step.kwargs))
            value.version = value.base.version
        return value.node

    def viewed(self, value: Value) -> fx.Node:
        """Returns `value` as a view of its base, also where `read` would return written data in separate memory."""
        if value.parent is None or value.step is None:
            return value.base.node
        step = value.step
        return self.emitter.emit(step.op, self.viewed(value.parent), *step.args, **dict(step.kwargs))

    def tensors_to_fill(
        self, op: OpOverload, written: dict[str, torch.Tensor], arguments: dict[str, Any]
    ) -> dict[str, fx.Node]:
        """Returns the arguments that `op` fills with random numbers, in the layouts of the program's tensors `written`:
        the layout assigns the numbers to elements.

        The functional operator has no argument for an output, and fills a result in row-major order.
        """
        laid_out = {
            name: self.emitter.restride(arguments[name], like) for name, like in written.items() if name in arguments
        }
        for name, like in written.items():
            argument = laid_out.get(name)
            same = like.is_contiguous() if argument is None else has_strides_of(argument.meta["val"], like)
            # For a tensor with gaps, `normal_` draws differently.
            if not same or (op is torch.ops.aten.normal_.default and not is_dense(like)):
                raise refuse(f"`{op}` draws random numbers into a tensor with gaps, or into a transposed output")
        return laid_out

    def write(self, value: Value, new: fx.Node) -> None:
        """Records that the program writes `new`, of the same shape and dtype, to the memory of `value`."""
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
        if value.parent is None or value.base.input is None:  # data in an input is read from the input
            value.node, value.version = new, value.base.version

    def scattered(self, value: Value, new: fx.Node) -> tuple[Value, fx.Node]:
        """Returns the tensor that `value` is a view of, and its data after `new` is written to the view."""
        step, parent = value.step, value.parent
        assert step is not None and parent is not None
        if step.op is operator.getitem and parent.parent is not None and parent.step is not None:
            viewed, op = parent.parent, parent.step.op
            node = self.read(viewed)
            if (rule := ELEMENT_INVERSES.get(op)) is not None:  # type: ignore[call-overload]
                scatter, *args = rule(self.emitter, *step.args, *parent.step.args, **dict(parent.step.kwargs))
                return viewed, _marked_as_partial_write(self.emitter.emit(scatter, node, new, *args), node)
        else:
            viewed, op = parent, step.op
            inverse = INVERSES.get(op)  # type: ignore[call-overload]
            if inverse is not None:
                node = self.read(viewed)
                whole = inverse(self.emitter, node, new, *step.args, **dict(step.kwargs))
                return viewed, _marked_as_partial_write(whole, node)
        raise refuse(f"a tensor is written through `{op}`, a view whose inverse is not known")


def _marked_as_partial_write(written: fx.Node, viewed: fx.Node) -> fx.Node:
    """Marks `written` as a partial write to `viewed`, if it is a copy of `viewed` with one part replaced. Eager writes
    only the part."""
    if written is not viewed and written.args[0] is viewed:
        written.meta[WRITTEN] = {0: 0}
    return written


def refuse(what: str, node: fx.Node | None = None) -> GraphRefused:
    """Returns the error for a mutation without a functional form; `node` is the newest value of the memory."""
    return GraphRefused(
        Diagnostic(
            "MD402",
            what,
            why="Compiled graphs compute values; this write cannot be turned into one.",
            fix="Write `x = x.op()` instead of `x.op_()`, or keep this function out: `@minidynamo.disable`.",
            where=line_of_node(node),
        )
    )
