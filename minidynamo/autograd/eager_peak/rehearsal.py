"""Owns the peak that a captured graph has in eager: it is run once, forward and backward, on tensors without data.

Torch's own autograd saves and frees what it saves and frees with data, and every storage that operations make is
counted from its birth to its death. Nothing here is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.eager_peak.with_hints import without_data
from minidynamo.autograd.graph.counting import StorageCounter
from minidynamo.autograd.graph.inputs import layout_of
from minidynamo.fake import mode as fake_mode
from minidynamo.graph.torch_settings import preserved
from minidynamo.memory.storages import strided_in


@dataclass(frozen=True)
class EagerMemory:
    """Bytes on top of the inputs: the most at one time in a call and, if gradients flow, in its backward; those that
    live between the two, with the results; and the most in the call alone."""

    peak: int
    between: int
    forward: int


def eager_memory(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, repeated: bool = False, held: bool = False
) -> EagerMemory | None:
    """What the operations of `gm` hold, where the gradient of each result has memory of its own, or is one number that
    is `repeated`, and the results are gone when backward begins, or are `held`. None where that cannot be foreseen:
    where the program looks into data, say."""
    try:
        with torch.autograd.set_detect_anomaly(False), preserved():
            return _Rehearsal(gm, example_inputs, repeated, held).run()
    except Exception:  # of the program's, or of torch's without data
        return None


class _Arrival(torch.autograd.Function):
    """Stands for what becomes of results: its gradients are those of the results, which it does not keep."""

    @staticmethod
    def forward(ctx: Any, from_outside: set[object], repeated: bool, *results: torch.Tensor) -> torch.Tensor:
        ctx.from_outside = from_outside
        # Gradients of views with gaps have none.
        layouts = [(0,) * value.dim() if repeated else torch.empty_like(value).stride() for value in results]
        ctx.made = [(value.shape, s, value.dtype, value.device) for value, s in zip(results, layouts)]
        return results[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        made = [torch.empty_strided(*sizes, dtype=dtype, device=device) for *sizes, dtype, device in ctx.made]
        ctx.from_outside.update(compat.memory_of(value) for value in made)
        return None, None, *made


class _Program(fx.Interpreter):
    """Runs the graph; values die behind their last use, as in eager."""

    def __init__(self, gm: fx.GraphModule, as_fake: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(gm)
        self.as_fake = as_fake

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The value of an attribute, without data."""
        value = super().get_attr(target, args, kwargs)
        return self.as_fake(value) if isinstance(value, torch.Tensor) else value


class _Rehearsal:
    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], repeated: bool, held: bool) -> None:
        self.gm = gm
        self.repeated = repeated
        self.held = held
        self.layout = layout_of(gm, example_inputs)
        self.flat = self.layout.flatten(example_inputs)
        self.mode = fake_mode.FakeTensorMode()  # with the sizes of this call
        self.counting = StorageCounter()
        self.leaves: list[torch.Tensor] = []
        self.constants: dict[int, torch.Tensor] = {}

    def run(self) -> EagerMemory:
        with self.mode, torch.enable_grad():
            given = [self.as_input(value) for value in self.flat]
        held = [value for value in given if isinstance(value, torch.Tensor)]
        histories = [value.grad_fn for value in held]
        self.counting.record([*self.leaves, *held], counts=False)
        program = _Program(self.gm, self.as_constant)
        with self.mode, self.counting:
            made = program.run(*self.layout.unflatten(given), enable_io_processing=False)
        self.counting.update_peak()
        program.env.clear()
        del given
        between, forward = self.counting.level, self.counting.peak
        written = [value for value, before in zip(held, histories) if value.grad_fn is not before]
        results = {id(value): value for value in (*written, *strided_in(made)) if value.requires_grad}
        del written, histories
        with self.mode, torch.enable_grad():
            end = self.arrival(list(results.values())) if results and self.leaves else None
        holding = made if self.held else None
        del made, results
        if end is not None:
            first = torch.empty_like(end)
            self.counting.record([first], counts=False)
            with self.mode, self.counting:
                gradients = torch.autograd.grad(end, self.leaves, first, allow_unused=True)
            self.counting.update_peak()
            del gradients
        del holding
        return EagerMemory(self.counting.peak, between, forward)

    def arrival(self, results: list[torch.Tensor]) -> torch.Tensor:
        """What backward begins with."""
        end: torch.Tensor = _Arrival.apply(self.counting.from_outside, self.repeated, *results)  # type: ignore[no-untyped-call]
        return end

    def as_input(self, value: Any) -> Any:
        """A value like `value`, without data and with the size of this call."""
        leaf = without_data(value)
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return leaf
        self.leaves.append(leaf.requires_grad_())
        return leaf if value.is_leaf else leaf.clone()

    def as_constant(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of the program's, without data."""
        if id(value) not in self.constants:
            self.constants[id(value)] = self.mode.from_tensor(value)
            self.counting.record([self.constants[id(value)]], counts=False)
        return self.constants[id(value)]
