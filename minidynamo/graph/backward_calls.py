"""Owns the functions that a captured backward calls, apart from the formulas of torch: hooks, sums, and writes to
`.grad`. They act as autograd does; the tracer inlines them.

`frontend/captured/tape.py` writes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.core.directives import disable
from minidynamo.core.records import record

Gradient = torch.Tensor | None


@record(frozen=True)
class InlinedBackward:
    """The backward of a compiled graph, as a part of a captured backward."""

    #: The graph that computes the gradients.
    graph: fx.GraphModule
    #: Its arguments: values of the captured backward, or indices of numbers on the context of the node.
    args: Sequence[torch.Tensor | int | None]
    #: Returns what the node returns to autograd, given the results of the graph.
    returned: Callable[[list[Any]], Sequence[Any]] = tuple


def in_layout(gradient: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Returns a copy of a gradient with these strides."""
    like = gradient.new_empty_strided(gradient.shape, strides)
    return like.copy_(gradient)


def with_strides(gradient: Gradient, strides: Sequence[int]) -> Gradient:
    """Returns a gradient with these strides: itself, or a copy."""
    if gradient is None or gradient.stride() == tuple(strides):
        return gradient
    return in_layout(gradient, strides)


def call_hook(hook: Callable[[Gradient], Any], gradient: Gradient) -> Gradient:
    """Returns the gradient after a hook of a tensor."""
    return _checked(hook, gradient, hook(gradient))


def _checked(hook: Callable[..., Any], before: Gradient, after: Any) -> Gradient:
    """Returns the gradient after a hook; raises the errors of autograd."""
    if after is None or before is None:
        return before if after is None else after
    name = getattr(hook, "__name__", "<unknown>")
    if not isinstance(after, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(after).__name__}'")
    if after.dtype != before.dtype:
        raise RuntimeError(f"hook '{name}' has changed the type of value (was {before.type()} got {after.type()})")
    if after.device != before.device:
        raise RuntimeError(f"hook '{name}' has changed the type of value")
    if after.shape != before.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value")
    return after


def call_node_hook(
    hook: Callable[..., Any], gradients: Sequence[Gradient], *others: Sequence[Gradient]
) -> Sequence[Gradient]:
    """Returns the gradients after a hook before or after a node."""
    results = hook(tuple(gradients), *[tuple(other) for other in others])
    if results is None:
        return gradients
    if isinstance(results, torch.Tensor):
        results = (results,)
    if len(results) != len(gradients):
        name = getattr(hook, "__name__", "<unknown>")
        counts = f"(got {len(results)}, but expected {len(gradients)})"
        raise RuntimeError(f"hook '{name}' has returned an incorrect number of values {counts}")
    return [_checked(hook, before, after) for before, after in zip(gradients, results)]


def call_leaf_hook(hook: Callable[[torch.Tensor], Any], leaf: torch.Tensor) -> None:
    """Calls a hook that runs after accumulation into `leaf.grad`."""
    if hook(leaf) is not None:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


@disable(reason="it runs hooks that are written in C++")
def call_cpp_hooks(number: int, gradient: Gradient) -> Gradient:
    """Returns the gradient after the C++ hooks of a tensor."""
    return compat.run_cpp_hooks(number, gradient)


def add(total: Gradient, gradient: Gradient) -> Gradient:
    """Returns the sum of two gradients of a tensor."""
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient


def add_in_place(total: Gradient, gradient: Gradient) -> Gradient:
    """Returns the sum of two gradients of a tensor, in the memory of the first."""
    if total is None or gradient is None:
        return gradient if total is None else total
    return total.add_(gradient)


def add_to_leaf(leaf: torch.Tensor, gradient: Gradient, is_owned: bool) -> None:
    """Adds a gradient to `leaf.grad`. `is_owned`: nothing else refers to the memory of the gradient."""
    if gradient is None:
        return
    if gradient.is_sparse or (leaf.grad is not None and leaf.grad.is_sparse):
        leaf.grad = _sparse_sum(leaf.grad, gradient)
    elif leaf.grad is not None:
        if torch.is_grad_enabled():
            leaf.grad = leaf.grad + gradient
        else:
            leaf.grad.add_(gradient)
    elif torch.is_grad_enabled():
        leaf.grad = gradient.clone()
    elif not is_owned or gradient.stride() != leaf.stride():
        leaf.grad = torch.empty_like(leaf).copy_(gradient)
    else:
        leaf.grad = gradient.detach()


def _sparse_sum(total: Gradient, gradient: torch.Tensor) -> torch.Tensor:
    """Returns the sum of two gradients, of which one is sparse at least. torch adds a sparse tensor to a dense one only
    in this order."""
    if total is None:
        return gradient.clone()
    return gradient + total if total.is_sparse and not gradient.is_sparse else total + gradient


class ContextState:
    """The attributes that a custom Function has set on its context."""

    __slots__ = ("__dict__", "context")

    def __init__(self, context: Any) -> None:
        self.__dict__ = context.__dict__
        self.context = context


class SavedContext:
    """The context of a custom Function in a captured backward: the saved tensors are values of the captured graph."""

    def __init__(self, state: Any, saved_tensors: Sequence[Gradient], needs_input_grad: tuple[bool, ...]) -> None:
        vars(self).update(state=state, saved_tensors=tuple(saved_tensors), needs_input_grad=needs_input_grad)

    def __getattr__(self, name: str) -> Any:
        state = self.state
        if name in state.__dict__:
            return state.__dict__[name]
        return _attribute(state.context, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.state, name, value)


@disable(reason="torch computes this attribute of a context")
def _attribute(context: Any, name: str) -> Any:
    return getattr(context, name)


def call_backward(
    backward: Callable[..., Any],
    state: ContextState,
    saved_tensors: Sequence[Gradient],
    needs_input_grad: tuple[bool, ...],
    *gradients: Gradient,
) -> Sequence[Gradient]:
    """Returns the gradients that the backward of a custom Function computes."""
    results = backward(SavedContext(state, saved_tensors, needs_input_grad), *gradients)
    results = results if isinstance(results, tuple) else (results,)
    count = len(needs_input_grad)
    if len(results) < count or any(extra is not None for extra in results[count:]):
        raise RuntimeError(f"function returned an incorrect number of gradients (expected {count}, got {len(results)})")
    return results[:count]


class _OpaqueContext:
    """The context of a compiled graph in a captured backward that runs the graph's own backward."""

    def __init__(self, context: Any, saved_tensors: Sequence[Gradient]) -> None:
        self.context, self.saved_tensors = context, tuple(saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)


@disable(reason="the backward of a compiled graph runs by itself")
def call_opaque(
    backward: Callable[..., Any], context: Any, saved_tensors: Sequence[Gradient], *gradients: Gradient
) -> Sequence[Gradient]:
    """Returns the gradients that the backward of a compiled graph computes."""
    results: Sequence[Gradient] = backward(_OpaqueContext(context, saved_tensors), *gradients)
    return results[: len(context.needs_input_grad)]


def same(value: Any) -> Any:
    """Returns `value`."""
    return value


def begin_slice(
    gradient: torch.Tensor,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    part_sizes: Sequence[int],
    part_strides: Sequence[int],
    part_offset: int,
) -> list[torch.Tensor]:
    """Copies the gradient of a tensor of which a part was written. Returns the copy, the part, and a copy of it."""
    result = gradient.new_empty_strided(sizes, strides)
    result.copy_(gradient)
    part = result.as_strided(part_sizes, part_strides, part_offset - offset)
    return [result, part, part.clone(memory_format=torch.contiguous_format)]


def end_slice(
    needed: Sequence[bool], result: torch.Tensor, gradients: Sequence[Gradient], part: torch.Tensor
) -> list[Gradient]:
    """Writes the gradient of a part of a tensor into the gradient of the tensor; returns the gradients of the node."""
    returned: list[Gradient] = [gradient if wanted else None for gradient, wanted in zip(gradients, needed)]
    if returned and returned[0] is not None:
        part.copy_(returned[0])
        returned[0] = result
    return returned
