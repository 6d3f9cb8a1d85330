"""Owns the record of how to call the compiled graphs: everything that the autograd stage leaves after compilation.

Its data can be written to a file and read by another process; `graph_call.py` follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.layouts import WrittenLayout, written_layout
from minidynamo.autograd.graph.signature import (
    Edge,
    GraphSignature,
    InputMutation,
    Node,
    NodeGraph,
    OutputPlan,
    ResultNumber,
    SavedIndex,
    Unpacked,
    ViewStep,
)
from minidynamo.autograd.runtime.double_backward import HigherOrderPlan
from minidynamo.autograd.runtime.partial_backward import BackwardPart
from minidynamo.core.records import record
from minidynamo.errors import an
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.unbacked_symints import hint_of
from minidynamo.graph_cache.encoding import Codec, Damaged, Json, NotStorable
from minidynamo.memory.plan import SavedValue

NUMBER = "number"
"""Replaces a symbolic number among the `expected` values of a written plan."""


@record(frozen=True)
class CallPlan:
    """How to call the graphs of one torch-level graph."""

    #: Lists and single values among the arguments.
    layout: InputLayout
    #: How to call the flat graph.
    signature: GraphSignature
    #: Inference graphs only: run with the grad mode off.
    without_grad: bool = False
    #: Per value that backward takes besides tangents: ("input", index of the input), ("result", position) or ("extra",
    #: number after the results).
    saved: tuple[tuple[str, int], ...] = ()
    #: Fake values of the arguments of backward: the `saved` values, then one tangent per differentiable result (see
    #: `graph_call.training_call`).
    expected: tuple[Any, ...] = ()
    #: What to keep for derivatives of the gradients.
    higher: HigherOrderPlan = field(default_factory=HigherOrderPlan)


@record(frozen=True)
class CompiledCall:
    """A plan with its compiled graphs."""

    plan: CallPlan
    #: The forward graph; the inference graph if `compile_backward` is None.
    forward: BoxedCallable
    #: Compiles a part of backward; returns None for a part if only the whole is available.
    compile_backward: Callable[[BackwardPart], BoxedCallable | None] | None = None
    #: Returns the whole backward graph, for callers that put it into a larger graph; None if it was not stored.
    backward_graph: Callable[[], fx.GraphModule | None] = lambda: None


RECORDS = (
    *(CallPlan, InputLayout, GraphSignature, InputMutation, OutputPlan, HigherOrderPlan, ResultNumber, SavedValue),
    *(ViewStep, WrittenLayout, SavedIndex, Unpacked, NodeGraph, Node, Edge),
)


def write_plan(plan: CallPlan, codec: Codec) -> Json:
    """Returns the written form of a plan; raises NotStorable."""
    first = len(plan.saved)
    expected = [_written(value, is_gradient=position >= first) for position, value in enumerate(plan.expected)]
    signature = replace(plan.signature, saved=tuple(map(_without_symbols, plan.signature.saved)))
    return codec.encode(replace(plan, expected=tuple(expected), signature=signature))


def _written(value: Any, *, is_gradient: bool) -> WrittenLayout | str | None:
    """Returns the written form of an expected value: NUMBER for a number, the layout of a gradient, None for a saved
    tensor. `graph_call.py` reads no other facts."""
    if isinstance(value, compat.SYMBOLIC_NUMBERS):
        return NUMBER
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise NotStorable(f"backward takes {an(type(value).__name__)}")
    return written_layout(value) if is_gradient else None


def _without_symbols(value: SavedValue) -> SavedValue:
    """Returns the record of a saved value with the sizes of the call that was compiled for."""
    # Reports only: sizes and bytes that users are shown.
    return replace(value, shape=tuple(map(hint_of, value.shape)), bytes=hint_of(value.bytes))


def read_plan(form: Json, codec: Codec) -> CallPlan:
    """Returns the plan of a written form; raises Damaged for any other form."""
    plan = codec.decode(form)
    if not isinstance(plan, CallPlan):
        raise Damaged("it has no plan")
    return plan
