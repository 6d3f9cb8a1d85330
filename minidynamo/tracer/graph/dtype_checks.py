"""Owns the question whether torch has an operation for arguments of some dtypes: torch itself answers it.

Fake tensors take many combinations that eager refuses: floats written to tensors of ints, bools that are subtracted,
bits of floats. A few take dimensions that there are not. So a call is made once on small real tensors of the same
dtypes. It knows nothing of graphs.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from minidynamo.compat import SYMBOLIC_NUMBERS
from minidynamo.tracer.records.operator_table import BINARY, IN_PLACE, UNARY

# Operations that take any sizes that fit each other, which torch does not say of them.
_FITTING_NAMES = """
    absolute addbmm addmm addmv addr arctan2 argsort baddbmm binary_cross_entropy_with_logits bmm bucketize
    cross_entropy dist divide dot einsum fill fix full_like greater greater_equal huber_loss inner less less_equal
    linear log_sigmoid log_softmax logsigmoid matmul median mm mode mse_loss msort multilabel_soft_margin_loss
    multiply mv nanmean nanmedian negative nll_loss not_equal outer prelu put smooth_l1_loss soft_margin_loss
    softmax softmin sort square subtract threshold true_divide vdot
"""
_FITTING = frozenset(_FITTING_NAMES.split())
# Those that ask more of sizes, and take floats: with other dtypes they are tried with the sizes that they are given.
_FLOATING = frozenset(["max_pool1d"])
# Where those that fill a tensor with a number are given its sizes, none of which are needed to try the number.
_SIZES = {"full": 0, "new_full": 1}
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
    most = 2
    if name in _SIZES and len(args) > _SIZES[name]:
        args = [() if k == _SIZES[name] else arg for k, arg in enumerate(args)]
    elif name in _FLOATING and not all(map(_may_be_float, (*args, *kwargs.values()))):
        most = sys.maxsize
    elif target not in _OPERATORS and target not in _DRAWS and not _takes_sizes_that_fit(name):
        return
    try:
        standing = _standing_for((tuple(args), tuple(kwargs.items())), most)
    except _Unknown:
        return
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    refused = _refusal(target, standing, (torch.get_default_dtype(), *autocast))
    if refused is not None:
        raise refused.with_traceback(None)


def _may_be_float(arg: Any) -> bool:
    return not isinstance(arg, torch.Tensor) or arg.is_floating_point()


@functools.cache
def _takes_sizes_that_fit(name: str) -> bool:
    """Whether an operation, or what it does in place, works element by element, reduces or multiplies."""
    if name in _SPECIAL_METHODS:
        return True
    stem = name.strip("_")
    packet = getattr(torch.ops.aten, stem, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    tags = {tag.name for overload in overloads for tag in overload.tags}
    return stem in _FITTING or ("nondeterministic_seeded" not in tags and bool(tags & {"pointwise", "reduction"}))


def _standing_for(value: Any, most: int) -> Any:
    """A hashable form of arguments, which tells 1 from 1.0 and from True, and has at most `most` elements in each
    dimension of a tensor; raises _Unknown."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise _Unknown
        sizes = (2 if isinstance(size, torch.SymInt) else size for size in value.shape)
        return _Tensor(value.dtype, tuple(min(size, most) for size in sizes))
    if type(value) in (list, tuple, torch.Size):
        return (type(value), *(_standing_for(item, most) for item in value))
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
    except IndexError as error:  # else of a class that there is not, among as few as stand for all
        return error.with_traceback(None) if str(error).startswith("Dimension out of range") else None
    return None
