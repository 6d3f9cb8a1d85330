"""Owns the record of how compiled graphs are called: all that is left of the autograd stage once they are compiled.

It holds data that can be written down and read by another process; `runtime.py` follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from minidynamo.autograd.inputs import InputLayout
from minidynamo.autograd.signature import (
    GraphSignature,
    InputMutation,
    OutputPlan,
    ResultNumber,
    SavedValue,
    ViewStep,
)
from minidynamo.boxed import BoxedCallable
from minidynamo.graph_cache.encoding import Codec, Damaged, Json, NotStorable


@dataclass(frozen=True)
class TensorLayout:
    """Sizes, strides, dtype and device of a tensor; answers like one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def stride(self) -> tuple[int, ...]:
        """The strides in elements."""
        return self.strides


@dataclass(frozen=True)
class CallPlan:
    """How to call the graphs of one torch-level graph.

    `without_grad` is of inference graphs: they run with the grad mode off. `saved` says where each value that backward
    takes comes from, `expected` has values like those that it takes (see `runtime.training_call`).
    """

    layout: InputLayout
    signature: GraphSignature
    without_grad: bool = False
    saved: tuple[tuple[str, int], ...] = ()
    expected: tuple[Any, ...] = ()


@dataclass(frozen=True)
class CompiledCall:
    """A plan with compiled graphs. `forward` is the inference graph when there is no `compile_backward`."""

    plan: CallPlan
    forward: BoxedCallable
    compile_backward: Callable[[], BoxedCallable] | None = None


RECORDS = (
    *(CallPlan, InputLayout, GraphSignature, InputMutation, OutputPlan, ResultNumber, SavedValue, ViewStep),
    TensorLayout,
)


def write_plan(plan: CallPlan, codec: Codec) -> Json:
    """The written form of a plan; raises NotStorable."""
    return codec.encode(replace(plan, expected=tuple(map(_layout_of, plan.expected))))


def _layout_of(value: Any) -> TensorLayout:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise NotStorable(f"backward takes a {type(value).__name__}")
    return TensorLayout(tuple(value.shape), value.stride(), value.dtype, value.device)


def read_plan(form: Json, codec: Codec) -> CallPlan:
    """The plan that `write_plan` described; raises Damaged for another form."""
    plan = codec.decode(form)
    if not isinstance(plan, CallPlan):
        raise Damaged("it has no plan")
    return plan
