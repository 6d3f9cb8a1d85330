"""Owns the split of torch's operations on lists of tensors into one operation per tensor, as optimizers use them.

`decompositions.py` decides which operations are split.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import OpOverload, foreach_operators

_UNARY = "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal"
_UNARY += " round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero clone"
_BINARY = "add sub mul div clamp_max clamp_min pow copy lerp"
# Operations whose single-tensor form has another name; `_SCALED`: its last argument is a keyword.
_CALLED = {"maximum": "clamp_min", "minimum": "clamp_max"}
_SCALED = {"addcdiv", "addcmul"}
_NAMES = {**{name: name for name in [*_UNARY.split(), *_BINARY.split(), *_SCALED]}, **_CALLED}


def foreach_table() -> dict[OpOverload, Callable[..., Any]]:
    """Maps each overload on lists to a function that computes the same tensor by tensor."""
    operators = (op for name in _NAMES for op in foreach_operators(name))
    return {op: functools.partial(_one_by_one, op) for op in operators if hasattr(torch.Tensor, _method(op))}


def _method(op: OpOverload) -> str:
    """Returns the tensor method that corresponds to an operator on lists."""
    name = op._schema.name.removeprefix("aten::_foreach_")
    return _NAMES[name.removesuffix("_")] + "_" * name.endswith("_")


def _one_by_one(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    method = _method(op)
    scaled = len(args) > 3 and method.rstrip("_") in _SCALED
    if scaled and isinstance(args[3], torch.Tensor):
        return NotImplemented  # the numbers are in a tensor, which would have to be read
    count = max(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    rows = zip(*(arg if isinstance(arg, (list, tuple)) else [arg] * count for arg in args))
    results = [_one(method, row, kwargs, scaled=scaled) for row in rows]
    return None if method.endswith("_") else results


def _one(method: str, args: Sequence[Any], kwargs: dict[str, Any], *, scaled: bool) -> Any:
    if not isinstance(args[0], torch.Tensor):
        return torch.pow(*args)
    if scaled:
        args, kwargs = args[:3], {**kwargs, "value": args[3]}
    if method.endswith("_"):  # writes inside a decomposition are not counted otherwise
        torch.autograd.graph.increment_version(args[0])
    return getattr(args[0], method)(*args[1:], **kwargs)
