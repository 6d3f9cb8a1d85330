"""Owns the check whether torch implements an operation for the dtypes of its arguments: torch itself decides.

Fake tensors accept many combinations that eager refuses: floats written to tensors of ints, subtraction of bools,
bitwise operations on floats. A few accept dimensions that do not exist. So the call is tried once on small real tensors
of the same dtypes. Graph nodes are not known here."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from minidynamo.compat import SYMBOLIC_NUMBERS
from minidynamo.tracer.graph.dead_code import name_of_target
from minidynamo.tracer.records.operator_table import BINARY, IN_PLACE, UNARY

# Operations that accept any sizes that fit together, although torch has no tag for this property.
_FITTING_NAMES = """
    absolute addbmm addmm addmv addr arctan2 argsort baddbmm binary_cross_entropy_with_logits bmm bucketize
    cross_entropy dist divide dot einsum fill fix full_like greater greater_equal huber_loss inner less less_equal
    linear log_sigmoid log_softmax logsigmoid matmul median mm mode mse_loss msort multilabel_soft_margin_loss
    multiply mv nanmean nanmedian negative nll_loss not_equal outer prelu put smooth_l1_loss soft_margin_loss
    softmax softmin sort square subtract threshold true_divide vdot
"""
_FITTING = frozenset(_FITTING_NAMES.split())
# Operations on floats with stricter requirements on sizes: any other dtype is tried with the real sizes.
_FLOATING = frozenset(["max_pool1d"])
# Position of the size argument of functions that fill a tensor with a number. To try the number, an empty size is
# enough.
_SIZES = {"full": 0, "new_full": 1}
# Operations that draw random numbers into a tensor.
_DRAWS_NAMES = """
    bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_
"""
_DRAWS = frozenset(_DRAWS_NAMES.split())
_OPERATORS: frozenset[object] = frozenset((*BINARY, *IN_PLACE, *UNARY))
_SPECIAL_METHODS = {*itertools.chain(*BINARY.values()), *(name for name, _ in IN_PLACE.values()), *UNARY.values()}


class _Tensor(NamedTuple):
    """A replacement of a tensor: the same dtype, and 0, 1 or 2 elements in each dimension."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class _NoReplacement(Exception):
    """Raised for an argument without a replacement."""


def raise_dtype_error(target: Callable[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises torch's error if a call that fake tensors accepted is refused on the CPU for its dtypes."""
    name = name_of_target(target)  # empty for a function of the user, which may have effects
    most = 2
    if name in _SIZES and len(args) > _SIZES[name]:
        args = [() if k == _SIZES[name] else arg for k, arg in enumerate(args)]
    elif name in _FLOATING and not all(map(_may_be_float, (*args, *kwargs.values()))):
        most = sys.maxsize
    elif target not in _OPERATORS and target not in _DRAWS and not _accepts_fitting_sizes(name):
        return
    try:
        replacement = _replacement_of((tuple(args), tuple(kwargs.items())), most)
    except _NoReplacement:
        return
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    refused = _error_of(target, replacement, (torch.get_default_dtype(), *autocast))
    if refused is not None:
        raise refused.with_traceback(None)


def _may_be_float(arg: Any) -> bool:
    return not isinstance(arg, torch.Tensor) or arg.is_floating_point()


@functools.cache
def _accepts_fitting_sizes(name: str) -> bool:
    """Returns whether an operation, or its in-place variant, works element by element, reduces or multiplies."""
    if name in _SPECIAL_METHODS:
        return True
    stem = name.strip("_")
    packet = getattr(torch.ops.aten, stem, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    tags = {tag.name for overload in overloads for tag in overload.tags}
    return stem in _FITTING or ("nondeterministic_seeded" not in tags and bool(tags & {"pointwise", "reduction"}))


def _replacement_of(value: Any, most: int) -> Any:
    """Returns a hashable form of arguments, with at most `most` elements per dimension; raises _NoReplacement.

    The form distinguishes 1 from 1.0 and True."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise _NoReplacement
        sizes = (2 if isinstance(size, torch.SymInt) else size for size in value.shape)
        return _Tensor(value.dtype, tuple(min(size, most) for size in sizes))
    if type(value) in (list, tuple, torch.Size):
        return (type(value), *(_replacement_of(item, most) for item in value))
    if isinstance(value, torch.SymInt) and value.node.hint is not None:
        return (None, int, value.node.hint)  # for example a dimension, for which other values may be invalid
    if isinstance(value, SYMBOLIC_NUMBERS):
        return float if isinstance(value, torch.SymFloat) else int if isinstance(value, torch.SymInt) else bool
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype | torch.device):
        return (None, type(value), value)
    raise _NoReplacement


def _build(replacement: Any) -> Any:
    if isinstance(replacement, _Tensor):
        return torch.ones(replacement.shape, dtype=replacement.dtype, device="cpu")
    if isinstance(replacement, type):
        return replacement(1)
    kind, *parts = replacement
    return parts[1] if kind is None else kind(map(_build, parts))


@functools.lru_cache(maxsize=8192)
def _error_of(target: Callable[..., Any] | str, replacement: Any, _settings: Any) -> Exception | None:
    args, named = _build(replacement)
    kwargs = dict(named)
    try:
        if target in _DRAWS:
            kwargs["generator"] = torch.Generator("cpu")  # leaves the program's generators alone
        if isinstance(target, str):
            getattr(args[0], target)(*args[1:], **kwargs)
        else:
            target(*args, **kwargs)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        return error.with_traceback(None)
    except IndexError as error:  # other errors: an index that is too large for the reduced sizes
        return error.with_traceback(None) if str(error).startswith("Dimension out of range") else None
    return None
