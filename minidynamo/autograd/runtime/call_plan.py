"""Owns the record of how compiled graphs are called: all that is left of the autograd stage once they are compiled.

It holds data that can be written down and read by another process; `graph_call.py` follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.inputs import InputLayout
from minidynamo.autograd.graph.layouts import WrittenLayout, written_layout
from minidynamo.autograd.graph.signature import (
    GraphSignature,
    InputMutation,
    OutputPlan,
    Place,
    ResultNumber,
    Unpacked,
    ViewStep,
)
from minidynamo.autograd.runtime.double_backward import HigherOrder
from minidynamo.autograd.runtime.partial_backward import Part
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.unbacked_symints import hint_of
from minidynamo.graph_cache.encoding import Codec, Damaged, Json, NotStorable
from minidynamo.memory.saved import SavedValue

NUMBER = "number"
"""Stands for a symbolic number among the values that backward takes."""


@dataclass(frozen=True)
class CallPlan:
    """How to call the graphs of one torch-level graph.

    `without_grad` is of inference graphs: they run with the grad mode off. `saved` says where each value that backward
    takes comes from, `expected` has values like those that it takes (see `runtime.training_call`). `higher` is for
    derivatives of the gradients.
    """

    layout: InputLayout
    signature: GraphSignature
    without_grad: bool = False
    saved: tuple[tuple[str, int], ...] = ()
    expected: tuple[Any, ...] = ()
    higher: HigherOrder = field(default_factory=HigherOrder)


@dataclass(frozen=True)
class CompiledCall:
    """A plan with compiled graphs. `forward` is the inference graph when there is no `compile_backward`, which compiles
    a part of backward; it may return None when there is only the whole."""

    plan: CallPlan
    forward: BoxedCallable
    compile_backward: Callable[[Part], BoxedCallable | None] | None = None


RECORDS = (
    *(CallPlan, InputLayout, GraphSignature, InputMutation, OutputPlan, HigherOrder, ResultNumber, SavedValue),
    *(ViewStep, WrittenLayout, Place, Unpacked),
)


def write_plan(plan: CallPlan, codec: Codec) -> Json:
    """The written form of a plan; raises NotStorable."""
    first = len(plan.saved)
    expected = [_written(value, is_gradient=position >= first) for position, value in enumerate(plan.expected)]
    signature = replace(plan.signature, saved=tuple(map(_without_symbols, plan.signature.saved)))
    return codec.encode(replace(plan, expected=tuple(expected), signature=signature))


def _written(value: Any, *, is_gradient: bool) -> WrittenLayout | str | None:
    """What `graph_call.py` looks at: whether a saved value is a number, and the layouts of gradients."""
    if isinstance(value, compat.SYMBOLIC_NUMBERS):
        return NUMBER
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise NotStorable(f"backward takes a {type(value).__name__}")
    return written_layout(value) if is_gradient else None


def _without_symbols(value: SavedValue) -> SavedValue:
    """What is shown of a saved value, with the sizes of the call that was compiled for."""
    # Reports only: sizes and bytes that users are shown.
    return replace(value, shape=tuple(map(hint_of, value.shape)), bytes=hint_of(value.bytes))


def read_plan(form: Json, codec: Codec) -> CallPlan:
    """The plan that `write_plan` described; raises Damaged for another form."""
    plan = codec.decode(form)
    if not isinstance(plan, CallPlan):
        raise Damaged("it has no plan")
    return plan
