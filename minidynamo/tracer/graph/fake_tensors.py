"""Owns the fake tensors of a trace: copies of real tensors without data, runs of calls, and the tracker of each.

Graph nodes are not known here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import (
    SYMBOLIC_NUMBERS,
    OpOverload,
    fake_implementation_of,
    memory_of,
    python_dispatcher,
    version_of,
    without_fake_tensor_log,
)
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.graph.pytree import tensors_in
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.tensors import Layout
from minidynamo.tracer.graph.dtype_checks import raise_dtype_error
from minidynamo.variables.tensors import TensorVariable


class CallFailed(Exception):
    """Raised after a call on fake tensors raised `__cause__`: the real call raises, too, or torch cannot compute the
    call for fake tensors."""


class FakeTensors:
    """The fake tensors of a trace, and its fake tensor mode."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._mode: FakeTensorMode = FakeTensorMode(allow_non_fake_inputs=False)
        self._trackers: dict[int, TensorVariable] = {}

    @property
    def mode(self) -> FakeTensorMode:
        """Returns the mode in which operations return fake tensors; it handles symbols as soon as the trace has any."""
        if self._shapes.is_symbolic and self._mode.shape_env is None:
            self._mode.shape_env = self._shapes.env
            self._mode.static_shapes = False
        return self._mode

    # Trackers

    def register(self, variable: TensorVariable) -> TensorVariable:
        """Registers the tracker of a fake tensor, and keeps it alive; returns the tracker."""
        self._trackers[id(variable.fake)] = variable
        return variable

    def tracker_of(self, fake: torch.Tensor) -> TensorVariable | None:
        """Returns the tracker of a fake tensor; None for the new result of an operation."""
        return self._trackers.get(id(fake))

    def external_tensors(self) -> dict[torch.fx.Node, torch.Tensor]:
        """Returns the fake tensors that have a source, by node."""
        return {v.node: v.fake for v in self._trackers.values() if v.source is not None}

    def owner_of(self, memory: object) -> TensorVariable | None:
        """Returns an external tensor in this memory; None if there is none."""
        owners = (v for v in self._trackers.values() if v.source is not None and memory_of(v.fake) == memory)
        return next(owners, None)

    # Creation

    def of_real(self, value: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Returns a fake tensor with exactly the properties that guards check: no views, no gradient."""
        with self.mode, _inference_mode(value.is_inference()):
            fake = torch.empty_strided(*layout, dtype=value.dtype, device=value.device)
            if isinstance(value, torch.nn.Parameter):
                return torch.nn.Parameter(fake, value.requires_grad)
            overlaps = any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride()))
            if value.requires_grad and (value.is_leaf or overlaps):
                fake.requires_grad_()
            elif value.requires_grad:
                _add_history(fake)
        return fake

    def result_like(self, like: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        """Returns a new fake tensor with the layout and dtype of `like`, as the result of an operation."""
        with self.mode:
            fake = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            if requires_grad:
                _add_history(fake)
        return fake

    def leaf_like(self, like: torch.Tensor, dim: int | None, requires_grad: bool) -> torch.Tensor:
        """Returns a new leaf with the layout and dtype of `like`, without dimension `dim` unless None."""
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
        """Returns whether a call since the previous query may draw random numbers."""
        draws, self._mode.draws = self._mode.draws, False
        return draws

    def run(self, target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a function, or the method of its first argument with that name."""
        dispatcher = python_dispatcher() if self._shapes.is_symbolic else contextlib.nullcontext()
        try:
            with without_fake_tensor_log():
                with self.mode, dispatcher:
                    if isinstance(target, str):
                        result = getattr(args[0], target)(*args[1:], **kwargs)
                    else:
                        result = target(*args, **kwargs)
                raise_dtype_error(target, args, kwargs)
                return result
        except Exception as error:
            raise CallFailed(str(error)) from _without_frames(error)

    def infers_symbolic_floats(self, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Returns whether a custom operator infers its results for symbolic floats.

        Branches on floats, and sizes computed from floats, are guarded."""
        implementation = fake_implementation_of(op)
        if implementation is None:
            return False
        try:
            with self.mode, python_dispatcher() if self._shapes.is_symbolic else contextlib.nullcontext():
                inferred = implementation(self.mode, *args, **kwargs)
        except Exception:
            return False
        results = inferred if isinstance(inferred, list | tuple) else [inferred]
        if any(isinstance(result, SYMBOLIC_NUMBERS) for result in results):
            return False
        for tensor in tensors_in(inferred):
            for number in (*tensor.shape, *tensor.stride()):
                if isinstance(number, torch.SymInt) and self._shapes.depends_on_float(number):
                    int(number)
        return True


def _without_frames(error: Exception) -> Exception:
    """Removes the tracebacks of an error: some functions of torch keep their errors, and with them all calling
    frames."""
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__context__
    return error


def _inference_mode(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which new tensors are inference tensors if `enabled`."""
    if enabled == torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    return torch.inference_mode(enabled)


def _add_history(fake: torch.Tensor) -> None:
    """Adds an autograd history to a fake tensor, so that it is no leaf and in-place writes are allowed."""
    with torch.enable_grad():
        fake.mul_(torch.ones((), dtype=fake.dtype, device=fake.device, requires_grad=True))


# Arguments and results of calls


class VersionCounters:
    """The version counters of the tensors among some arguments, at construction."""

    def __init__(self, args: Any) -> None:
        self._before = [(fake, version_of(fake)) for fake in tensors_in(args)]

    def written(self) -> list[torch.Tensor]:
        """Returns the tensors written since, and the tensors without a version counter."""
        return [fake for fake, version in self._before if version is None or version_of(fake) != version]


def has_symbols(result: Any) -> bool:
    """Returns whether the result is a symbolic number or contains one."""
    if isinstance(result, list | tuple):
        return any(has_symbols(item) for item in result)
    return isinstance(result, SYMBOLIC_NUMBERS)


def without_symbols(result: Any) -> Any:
    """Returns the result with each symbol specialized to its number, with a guard."""
    if isinstance(result, list | tuple) and has_symbols(result):
        return type(result)([without_symbols(item) for item in result])
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(result)](result) if type(result) in kinds else result


def same_numbers(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Returns whether two lists of sizes are the same numbers or expressions, without a guard."""
    plain = [[n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers] for numbers in (left, right)]
    return plain[0] == plain[1]
