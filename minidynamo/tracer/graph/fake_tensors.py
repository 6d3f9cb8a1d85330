"""Owns the fake tensors of one trace: how real ones are imitated, how calls run on them, which tracker each belongs to.

It knows nothing of graph nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import (
    SYMBOLIC_NUMBERS,
    OpOverload,
    form_without_data,
    memory_of,
    python_dispatcher,
    version_of,
    without_fake_tensor_log,
)
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.pytree import tensors_in
from minidynamo.guards.shapes import Layout, Shapes
from minidynamo.tracer.graph.dtype_checks import raise_unless_it_takes
from minidynamo.tracer.graph.eager_errors import eager_error
from minidynamo.variables.tensors import TensorVariable


class CallFailed(Exception):
    """A call on fake tensors raised `__cause__`; the real call would, too, or has no fake form."""

    def __init__(self, cause: Exception, target: Callable[..., Any] | str, args: Sequence[Any], kwargs: Any) -> None:
        super().__init__(str(cause))
        self._call = (target, args, kwargs)

    def in_eager(self) -> tuple[Exception, bool] | None:
        """What the real call raises, and whether it says this at each call; None where that is not known."""
        cause = self.__cause__
        return eager_error(*self._call, cause) if isinstance(cause, Exception) else None


class FakeTensors:
    """The fake tensors of one trace, and its fake tensor mode."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._mode = FakeTensorMode(allow_non_fake_inputs=False)
        self._trackers: dict[int, TensorVariable] = {}

    @property
    def mode(self) -> FakeTensorMode:
        """The mode in which operations give fake tensors. It knows of symbols as soon as there are any."""
        if self._shapes.is_symbolic and self._mode.shape_env is None:
            self._mode.shape_env = self._shapes.env
            self._mode.static_shapes = False
        return self._mode

    # Trackers

    def note(self, variable: TensorVariable) -> TensorVariable:
        """Note the tracker of a fake tensor, which keeps it alive; gives the tracker."""
        self._trackers[id(variable.fake)] = variable
        return variable

    def tracker_of(self, fake: torch.Tensor) -> TensorVariable | None:
        """The tracker that a fake tensor belongs to; None for one that an operation has just made."""
        return self._trackers.get(id(fake))

    def from_outside(self) -> dict[torch.fx.Node, torch.Tensor]:
        """The fake tensors that have a place outside, by their nodes."""
        return {v.node: v.fake for v in self._trackers.values() if v.source is not None}

    def owner_of(self, memory: object) -> TensorVariable | None:
        """A tensor from outside that lies in this memory, if there is one."""
        owners = (v for v in self._trackers.values() if v.source is not None and memory_of(v.fake) == memory)
        return next(owners, None)

    # Imitations

    def of_real(self, value: torch.Tensor, layout: Layout) -> torch.Tensor:
        """A fake tensor with the facts that guards check, and no others: not its views, not its gradient."""
        with self.mode, _inference_mode(value.is_inference()):
            fake = torch.empty_strided(*layout, dtype=value.dtype, device=value.device)
            if isinstance(value, torch.nn.Parameter):
                return torch.nn.Parameter(fake, value.requires_grad)
            overlaps = any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride()))
            if value.requires_grad and (value.is_leaf or overlaps):
                fake.requires_grad_()
            elif value.requires_grad:
                _give_history(fake)
        return fake

    def computed(self, like: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        """A new fake tensor like another one, as an operation would give it."""
        with self.mode:
            fake = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            if requires_grad:
                _give_history(fake)
        return fake

    def part(self, like: torch.Tensor, dim: int | None, requires_grad: bool) -> torch.Tensor:
        """A new leaf like another fake tensor, without dimension `dim` if that is given."""
        with self.mode:
            sizes, strides = list(like.shape), list(like.stride())
            if dim is not None:
                del sizes[dim], strides[dim]
            fake = torch.empty_strided(sizes, strides, dtype=like.dtype, device=like.device)
            if requires_grad and (fake.is_floating_point() or fake.is_complex()):
                fake.requires_grad_()
        return fake

    # Calls

    def take_draws(self) -> bool:
        """Whether a call that has run since this was asked last may draw random numbers."""
        draws, self._mode.draws = self._mode.draws, False
        return draws

    def run(self, target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function, or the method of its first argument with that name."""
        dispatcher = python_dispatcher() if self._shapes.is_symbolic else contextlib.nullcontext()
        try:
            with without_fake_tensor_log():
                with self.mode, dispatcher:
                    if isinstance(target, str):
                        result = getattr(args[0], target)(*args[1:], **kwargs)
                    else:
                        result = target(*args, **kwargs)
                raise_unless_it_takes(target, args, kwargs)
                return result
        except Exception as error:
            raise CallFailed(error, target, args, kwargs) from _without_frames(error)

    def infers_symbolic_floats(self, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether an operator of the program tells by itself what it gives for floats that are symbols. What it decides
        by them, and the sizes that it computes of them, are guarded."""
        form = form_without_data(op)
        if form is None:
            return False
        try:
            with self.mode, python_dispatcher() if self._shapes.is_symbolic else contextlib.nullcontext():
                made = form(self.mode, *args, **kwargs)
        except Exception:
            return False
        results = made if isinstance(made, list | tuple) else [made]
        if any(isinstance(result, SYMBOLIC_NUMBERS) for result in results):
            return False
        for tensor in tensors_in(made):
            for number in (*tensor.shape, *tensor.stride()):
                if isinstance(number, torch.SymInt) and self._shapes.depends_on_float(number):
                    int(number)
        return True


def _without_frames(error: Exception) -> Exception:
    """The same error without tracebacks: functions of torch's hold what they raise, and so all that called them."""
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__context__
    return error


def _inference_mode(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """A tensor is an inference tensor if inference mode was on when it was made."""
    if enabled == torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    return torch.inference_mode(enabled)


def _give_history(fake: torch.Tensor) -> None:
    """Let a fake tensor be one that autograd computed, so that it may be written to."""
    with torch.enable_grad():
        fake.mul_(torch.ones((), dtype=fake.dtype, device=fake.device, requires_grad=True))


# What calls take and give


class Versions:
    """How often the tensors among some arguments had been written to when this was made."""

    def __init__(self, args: Any) -> None:
        self._before = [(fake, version_of(fake)) for fake in tensors_in(args)]

    def written(self) -> list[torch.Tensor]:
        """The tensors that have been written to since, and those for which that is not counted."""
        return [fake for fake, version in self._before if version is None or version_of(fake) != version]


def has_symbols(result: Any) -> bool:
    """Whether a number that is not known is the result, or in it."""
    if isinstance(result, list | tuple):
        return any(has_symbols(item) for item in result)
    return isinstance(result, SYMBOLIC_NUMBERS)


def without_symbols(result: Any) -> Any:
    """A result with each symbol as the number that it is, which is guarded."""
    if isinstance(result, list | tuple) and has_symbols(result):
        return type(result)([without_symbols(item) for item in result])
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(result)](result) if type(result) in kinds else result


def same_numbers(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of sizes are the same numbers or expressions; nothing is guarded."""
    plain = [[n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers] for numbers in (left, right)]
    return plain[0] == plain[1]
