"""Owns the question what eager raises where a call on fake tensors has raised an error: torch itself answers it.

Fake tensors say some things in other words than eager does, and now and then refuse what eager takes. So the call is
made on real tensors of the same sizes, filled with zeros and with ones: where both raise errors of the class that was
raised without data, eager raises it whatever the tensors hold. It knows nothing of graphs.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import SYMBOLIC_NUMBERS, USUAL_CREATION, creation_of, written_lists
from minidynamo.fake.strides import reach
from minidynamo.graph.pytree import tensors_in

# What is larger is not made: it would take memory, and time should eager take the call.
_MOST_ELEMENTS = 2**20
_LIBRARIES = ("torch.functional", "torch.nn.functional")
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """An argument for which nothing can stand."""


def eager_error(
    target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any], error: Exception
) -> tuple[Exception, bool] | None:
    """What eager raises where a call has raised `error` without data, and whether it always says this; None where that
    is not known: eager may take the call, or has changed something before."""
    if not _may_be_tried(target) or "out" in kwargs or not _is_small((args, kwargs)):
        return None
    told = [_raised(target, args, kwargs, filling) for filling in (0, 1)]
    if any(type(one) is not type(error) for one in told):
        return None
    first, second = told
    assert first is not None and second is not None
    return first, _is_all_known((args, kwargs)) and first.args == second.args


def _may_be_tried(target: Callable[..., Any] | str) -> bool:
    """Whether a call runs torch's code alone, and has not changed one tensor of a list when it refuses another one."""
    if isinstance(target, types.BuiltinFunctionType):
        return not written_lists(target)
    return isinstance(target, str) or getattr(target, "__module__", None) in _LIBRARIES


def _raised(
    target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any], filling: int
) -> Exception | None:
    """What a call raises that neither writes nor draws before."""
    try:
        real_args, real_kwargs = _real([*args], filling), _real(kwargs, filling)
    except _Unknown:
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
            error.__traceback__ = error.__context__ = None  # whose frames hold what the program was given
            return error if unchanged else None
    return None


def _facts(value: Any) -> list[Any]:
    """What a call may change of tensors."""
    return [(t.shape, t.stride(), t._version) for t in tensors_in(value)]


def _real(value: Any, filling: int) -> Any:
    """The same arguments with tensors that have data, as they would lie on a CPU; raises _Unknown."""
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
    raise _Unknown


def _real_tensor(fake: torch.Tensor, filling: int) -> torch.Tensor:
    if fake.is_quantized or fake.is_conj() or fake.is_neg() or fake.is_inference():
        raise _Unknown
    if creation_of(fake) not in (None, USUAL_CREATION):  # autograd may refuse writes to it
        raise _Unknown
    sizes, strides = [*map(_here, fake.shape)], [*map(_here, fake.stride())]
    if fake.requires_grad and fake.is_leaf and any(n > 1 and step == 0 for n, step in zip(sizes, strides)):
        raise _Unknown  # which may be no leaf, but a view
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
    """The number in this call; nothing is guarded."""
    here = number.node.hint if isinstance(number, SYMBOLIC_NUMBERS) else number
    if here is None:
        raise _Unknown
    return here


def _is_small(value: Any) -> bool:
    """Whether tensors have few elements, and lie in little memory."""
    tensors = [*tensors_in(value)]
    if any(tensor.layout != torch.strided for tensor in tensors):
        return False
    try:
        laid_out = [([*map(_here, t.shape)], [*map(_here, t.stride())]) for t in tensors]
    except _Unknown:
        return False
    elements: int = sum(max(math.prod(sizes), _extent(sizes, strides)) for sizes, strides in laid_out)
    return elements <= _MOST_ELEMENTS


def _is_all_known(value: Any) -> bool:
    """Whether arguments are the same at each call, but for what tensors hold, and lie where they have been tried."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and _is_all_known([*value.shape, *value.stride()])
    if isinstance(value, list | tuple):
        return all(map(_is_all_known, value))
    if isinstance(value, dict):
        return _is_all_known([*value.values()])
    if isinstance(value, slice):
        return _is_all_known([value.start, value.stop, value.step])
    return not isinstance(value, SYMBOLIC_NUMBERS)
