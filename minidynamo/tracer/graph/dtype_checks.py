"""Owns the question whether torch has an operation for arguments of some dtypes: torch itself answers it.

Fake tensors take many combinations that eager refuses: floats written to tensors of ints, bools that are subtracted,
bits of floats. So a call is made once on small real tensors of the same dtypes. It knows nothing of graphs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from minidynamo.compat import SYMBOLIC_NUMBERS
from minidynamo.tracer.operator_table import BINARY, IN_PLACE, UNARY

# Operations that take any sizes that fit each other, which torch does not say of them.
_FITTING_NAMES = """
    absolute addbmm addmm addmv addr arctan2 argsort baddbmm bmm dist divide dot einsum fill fix greater greater_equal
    inner less less_equal linear log_softmax matmul median mm mode msort multiply mv nanmean nanmedian negative
    not_equal outer prelu put softmax sort square subtract true_divide vdot
"""
_FITTING = frozenset(_FITTING_NAMES.split())
# Operations that draw random numbers into a tensor.
_DRAWS_NAMES = """
    bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_
"""
_DRAWS = frozenset(_DRAWS_NAMES.split())
_OPERATORS: frozenset[object] = frozenset((*BINARY, *IN_PLACE, *UNARY))
_SPECIAL_METHODS = {*itertools.chain(*BINARY.values()), *(name for name, _ in IN_PLACE.values()), *UNARY.values()}


class _Tensor(NamedTuple):
    """What stands for a tensor: one of the same dtype with 0, 1 or 2 elements in each dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class _Unknown(Exception):
    """An argument for which nothing can stand."""


def raise_unless_it_takes(target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what torch raises for the dtypes of a call on a CPU that fake tensors have taken."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if target not in _OPERATORS and target not in _DRAWS and not _takes_sizes_that_fit(name):
        return
    try:
        standing = _standing_for((tuple(args), tuple(kwargs.items())))
    except _Unknown:
        return
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    refused = _refusal(target, standing, (torch.get_default_dtype(), *autocast))
    if refused is not None:
        raise refused.with_traceback(None)


@functools.cache
def _takes_sizes_that_fit(name: str) -> bool:
    """Whether an operation, or what it does in place, works element by element, reduces or multiplies."""
    if name in _SPECIAL_METHODS:
        return True
    stem = name.rstrip("_")
    packet = getattr(torch.ops.aten, stem, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    tags = {tag.name for overload in overloads for tag in overload.tags}
    return stem in _FITTING or ("nondeterministic_seeded" not in tags and bool(tags & {"pointwise", "reduction"}))


def _standing_for(value: Any) -> Any:
    """A hashable form of arguments, which tells 1 from 1.0 and from True; raises _Unknown."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise _Unknown
        return _Tensor(
            value.dtype, tuple(2 if isinstance(size, torch.SymInt) else min(size, 2) for size in value.shape)
        )
    if type(value) in (list, tuple, torch.Size):
        return (type(value), *map(_standing_for, value))
    if isinstance(value, torch.SymInt) and value.node.hint is not None:
        return (None, int, value.node.hint)  # a dimension, say, of which there may be no other
    if isinstance(value, SYMBOLIC_NUMBERS):
        return float if isinstance(value, torch.SymFloat) else int if isinstance(value, torch.SymInt) else bool
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype | torch.device):
        return (None, type(value), value)
    raise _Unknown


def _made(standing: Any) -> Any:
    if isinstance(standing, _Tensor):
        return torch.ones(standing.shape, dtype=standing.dtype, device="cpu")
    if isinstance(standing, type):
        return standing(1)
    kind, *parts = standing
    return parts[1] if kind is None else kind(map(_made, parts))


@functools.lru_cache(maxsize=8192)
def _refusal(target: Callable[..., Any] | str, standing: Any, _settings: Any) -> Exception | None:
    args, named = _made(standing)
    kwargs = dict(named)
    try:
        if target in _DRAWS:
            kwargs["generator"] = torch.Generator("cpu")  # nothing is drawn from those that the program draws from
        if isinstance(target, str):
            getattr(args[0], target)(*args[1:], **kwargs)
        else:
            target(*args, **kwargs)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        return error.with_traceback(None)
    return None
