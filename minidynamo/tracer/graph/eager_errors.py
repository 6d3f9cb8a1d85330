"""Owns the error that eager raises where a call on fake tensors has raised an error: torch itself decides.

Fake tensors raise some errors with different messages, and sometimes refuse calls that eager accepts. So the call is
repeated on real tensors of the same sizes, filled with zeros and with ones. If both raise an error of the same class as
the fake run, eager raises it for any data. Graph nodes are not known here."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import SYMBOLIC_NUMBERS, USUAL_CREATION, creation_of, written_lists
from minidynamo.fake.strides import reach
from minidynamo.graph.pytree import tensors_in

# Larger tensors are not allocated: they take memory, and time if eager accepts the call.
_MOST_ELEMENTS = 2**20
_LIBRARIES = ("torch.functional", "torch.nn.functional")
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NoReplacement(Exception):
    """Raised for an argument without a replacement."""


def eager_error(
    target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any], error: Exception
) -> tuple[Exception, bool] | None:
    """Returns the error of eager for a call that raised `error` without data, and whether its message is always the
    same.

    None if unknown: eager may accept the call, or may change something before the error."""
    if not _can_be_repeated(target) or "out" in kwargs or not _is_small((args, kwargs)):
        return None
    raised = [_raised(target, args, kwargs, filling) for filling in (0, 1)]
    if any(type(one) is not type(error) for one in raised):
        return None
    first, second = raised
    assert first is not None and second is not None
    return first, _is_same_in_each_call((args, kwargs)) and first.args == second.args


def _can_be_repeated(target: Callable[..., Any] | str) -> bool:
    """Returns whether a call runs torch's code alone, and changes no tensor of a list before it refuses another."""
    if isinstance(target, types.BuiltinFunctionType):
        return not written_lists(target)
    return isinstance(target, str) or getattr(target, "__module__", None) in _LIBRARIES


def _raised(
    target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any], filling: int
) -> Exception | None:
    """Returns the error of a call on real tensors; None if the call writes or draws before it raises."""
    try:
        real_args, real_kwargs = _real([*args], filling), _real(kwargs, filling)
    except _NoReplacement:
        return None
    before = _facts((real_args, real_kwargs))
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        try:
            if isinstance(target, str):
                getattr(real_args[0], target)(*real_args[1:], **real_kwargs)
            else:
                target(*real_args, **real_kwargs)
        except Exception as error:
            unchanged = _facts((real_args, real_kwargs)) == before and bool(torch.get_rng_state().equal(state))
            error.__traceback__ = error.__context__ = None  # their frames hold the program's values
            return error if unchanged else None
    return None


def _facts(value: Any) -> list[Any]:
    """Returns the properties of tensors that a call may change."""
    return [(t.shape, t.stride(), t._version) for t in tensors_in(value)]


def _real(value: Any, filling: int) -> Any:
    """Returns the arguments with real tensors, which are on the CPU; raises _Unknown."""
    if isinstance(value, torch.Tensor):
        return _real_tensor(value, filling)
    if type(value) in (list, tuple):
        return type(value)(_real(item, filling) for item in value)
    if type(value) is torch.Size:
        return torch.Size(_here(size) for size in value)
    if type(value) is dict:
        return {name: _real(item, filling) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_real(item, filling) for item in (value.start, value.stop, value.step)))
    if isinstance(value, SYMBOLIC_NUMBERS):
        return _here(value)
    if value is None or value is ... or isinstance(value, _PLAIN):
        return value
    raise _NoReplacement


def _real_tensor(fake: torch.Tensor, filling: int) -> torch.Tensor:
    if fake.is_quantized or fake.is_conj() or fake.is_neg() or fake.is_inference():
        raise _NoReplacement
    if creation_of(fake) not in (None, USUAL_CREATION):  # autograd may refuse writes to it
        raise _NoReplacement
    sizes, strides = [*map(_here, fake.shape)], [*map(_here, fake.stride())]
    if fake.requires_grad and fake.is_leaf and any(n > 1 and step == 0 for n, step in zip(sizes, strides)):
        raise _NoReplacement  # may be a view, not a leaf
    memory = torch.full((_extent(sizes, strides),), filling, dtype=fake.dtype, device="cpu")
    if fake.is_leaf or not fake.requires_grad:
        return memory.as_strided(sizes, strides).detach().requires_grad_(fake.requires_grad)
    of_leaf = fake._base is not None and fake._base.is_leaf
    with torch.enable_grad():
        whole = memory.requires_grad_() if of_leaf else memory.requires_grad_().clone()
        return whole.as_strided(sizes, strides)


def _extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + reach([*zip(strides, sizes)]) if math.prod(sizes) else 0


def _here(number: Any) -> Any:
    """Returns the number in this call, without a guard."""
    here = number.node.hint if isinstance(number, SYMBOLIC_NUMBERS) else number
    if here is None:
        raise _NoReplacement
    return here


def _is_small(value: Any) -> bool:
    """Returns whether tensors have few elements, and span little memory."""
    tensors = [*tensors_in(value)]
    if any(tensor.layout != torch.strided for tensor in tensors):
        return False
    try:
        laid_out = [([*map(_here, t.shape)], [*map(_here, t.stride())]) for t in tensors]
    except _NoReplacement:
        return False
    elements: int = sum(max(math.prod(sizes), _extent(sizes, strides)) for sizes, strides in laid_out)
    return elements <= _MOST_ELEMENTS


def _is_same_in_each_call(value: Any) -> bool:
    """Returns whether arguments are the same in each call, except the data of tensors, and are on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and _is_same_in_each_call([*value.shape, *value.stride()])
    if isinstance(value, list | tuple):
        return all(map(_is_same_in_each_call, value))
    if isinstance(value, dict):
        return _is_same_in_each_call([*value.values()])
    if isinstance(value, slice):
        return _is_same_in_each_call([value.start, value.stop, value.step])
    return not isinstance(value, SYMBOLIC_NUMBERS)
