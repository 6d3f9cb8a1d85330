"""Owns the tracing of calls with symbolic numbers where torch accepts only plain numbers (`graph/scalar_arguments.py`).

Most calls become one operation; its derivative is a second operation (`fallback_op.py`). Calls that draw random numbers
or write are split into a part that only draws or writes, and operations with symbolic arguments.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from minidynamo import compat
from minidynamo.autograd.graph.numbers import is_empty, is_symbolic
from minidynamo.autograd.trace.fallback_op import run_with_numbers
from minidynamo.autograd.trace.number_operators import (
    batch_norm,
    custom_op_taking_numbers,
    native_dropout,
    optimizer_update,
)
from minidynamo.graph.custom_operators import define
from minidynamo.graph.pytree import leaves
from minidynamo.graph.scalar_arguments import DRAWS, ScalarArguments, key_of_whole, operator_of, scalar_arguments_of


def _draw(
    like: Tensor, method: str, first: Any, second: Any = None, *, generator: torch.Generator | None = None
) -> Tensor:
    result = like.new_empty_strided(like.size(), like.stride())
    numbers = [n.node.hint if is_symbolic(n) else n for n in (first, second) if n is not None]
    drawn: Tensor = getattr(result, method)(*numbers, generator=generator)
    return drawn


draw = define(
    "draw",
    "(Tensor like, str method, Scalar first, Scalar? second=None, *, Generator? generator=None) -> Tensor",
    _draw,
    tags=(torch.Tag.nondeterministic_seeded,),
)
"""Returns a tensor with the layout of `like`, filled by a tensor method that draws random numbers."""


Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def takes_plain_numbers(target: Any, args: Args, kwargs: Kwargs) -> bool:
    """Returns whether a call has a symbolic number where torch accepts only plain numbers."""
    known = scalar_arguments_of(target) if any(map(_symbols, (*args, *kwargs.values()))) else None
    if kwargs.get("out") is not None:
        return False
    return known is not None and any(_varies(known, known.named(args, kwargs)).values())


def _varies(known: ScalarArguments, named: Mapping[str, Any]) -> dict[str, bool]:
    """Maps each argument to whether it has symbolic numbers where torch accepts only plain numbers."""
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    return {
        name: any(known.varies(name, isinstance(number, torch.SymInt), tensors) for number in _symbols(value))
        for name, value in named.items()
    }


def _symbols(value: Any) -> list[Any]:
    """Returns the symbolic numbers in an argument: the value itself, or items of a list."""
    return [item for item in (value if isinstance(value, (list, tuple)) else (value,)) if is_symbolic(item)]


def with_hints(target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Returns the arguments with scalar arguments replaced by their values in the call that is compiled for.

    No layout depends on scalar arguments.
    """
    if key_of_whole(target) is not None:
        return fx.node.map_aggregate(args, lambda n: n.node.hint if isinstance(n, torch.SymFloat) else n), kwargs
    if not takes_plain_numbers(target, args, kwargs):
        return args, kwargs
    return _converted(target, args, kwargs, lambda n, is_int: n.node.hint)


def _convert(number: Any, is_int: bool) -> Any:
    """Converts a symbolic number to the kind that torch accepts: float or int."""
    return number if is_int else torch.sym_float(number)


def _converted(target: Any, args: Args, kwargs: Kwargs, convert: Callable[[Any, bool], Any]) -> tuple[Args, Kwargs]:
    """Returns the arguments, with `convert` applied to symbolic numbers where torch accepts only plain numbers."""
    known = scalar_arguments_of(target)
    assert known is not None
    varies = _varies(known, known.named(args, kwargs))

    def taken(name: str, value: Any) -> Any:
        if not varies[name]:
            return value
        if isinstance(value, (list, tuple)):
            return [convert(item, name in known.ints) if is_symbolic(item) else item for item in value]
        return convert(value, name in known.ints)

    named = [taken(name, value) for name, value in zip(known.names, args)]
    return (*named, *args[len(named) :]), {name: taken(name, value) for name, value in kwargs.items()}


def call(target: Any, args: Args, kwargs: Kwargs) -> Any:
    """Traces a call for any value of its numbers.

    Returns NotImplemented for calls without symbolic scalar arguments, and if torch needs constants.
    """
    if key_of_whole(target) is not None and any(map(is_symbolic, leaves([*args]))):
        return run_with_numbers(target, args, kwargs)
    if not takes_plain_numbers(target, args, kwargs):
        return NotImplemented
    args, kwargs = _converted(target, args, kwargs, _convert)
    op = operator_of(target)
    if op is not None:
        has_formula = compat.definition_of(op) is not None
        return custom_op_taking_numbers(op)(*args, **kwargs) if has_formula else run_with_numbers(op, args, kwargs)
    if target in _SPLIT:
        return _SPLIT[target](*args, **kwargs)
    function = functools.partial(_method, target) if isinstance(target, str) else target
    known = scalar_arguments_of(target)
    assert known is not None
    if known.ints:
        function = functools.partial(_with_ints, known, function)
        args, kwargs = _converted(target, args, kwargs, lambda n, is_int: torch.sym_float(n))
    if _writes(target, args, kwargs):
        return args[0].copy_(
            run_with_numbers(functools.partial(_on_copy, function), (args[0].clone(), *args[1:]), kwargs)
        )
    return run_with_numbers(function, args, kwargs)


_IN_PLACE = (
    *(operator.ipow, operator.ifloordiv),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
)


def _writes(target: Any, args: Args, kwargs: Kwargs) -> bool:
    """Returns whether a call writes its result to the first argument."""
    known = scalar_arguments_of(target)
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    in_place = name.endswith("_") or target in _IN_PLACE
    return in_place or (known is not None and bool(known.named(args, kwargs).get("inplace")))


def _on_copy(function: Callable[..., Any], target: Tensor, /, *args: Any, **kwargs: Any) -> Any:
    return function(target.clone(), *args, **kwargs)


def _with_ints(known: ScalarArguments, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs a call with floats in place of int arguments: torch would treat a symbolic int as a size, and
    specialize it."""

    def taken(name: str, value: Any) -> Any:
        return int(value) if name in known.ints and isinstance(value, float) else value

    named = [taken(name, value) for name, value in zip(known.names, args)]
    return function(*named, *args[len(named) :], **{name: taken(name, value) for name, value in kwargs.items()})


def _method(name: str, owner: Tensor, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


# Draws


def _drawn(like: Tensor, method: str, *numbers: Any, generator: torch.Generator | None = None) -> Tensor:
    """Returns random numbers in a tensor like `like`. The strides decide which number goes where."""
    with torch.no_grad():
        layout = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)
    numbers_drawn: Tensor = draw(layout, method, *numbers, generator=generator)
    return numbers_drawn


# Method -> its number parameters with their defaults.
_NUMBERS: dict[str, dict[str, Any]] = {
    "bernoulli_": {"p": 0.5},
    "geometric_": {"p": None},
    "normal_": {"mean": 0.0, "std": 1.0},
    "log_normal_": {"mean": 1.0, "std": 2.0},
    "uniform_": {"from": 0.0, "to": 1.0},
    "exponential_": {"lambd": 1.0},
    "cauchy_": {"median": 0.0, "sigma": 1.0},
}


def _integers_into(target: Tensor, /, *bounds: Any, **kwargs: Any) -> Any:
    if len(bounds) == 1:
        bounds = (0, *bounds)
    generator = kwargs.pop("generator", None)
    if len(bounds) != 2 or kwargs:
        return NotImplemented
    return target.copy_(_drawn(target, "random_", *bounds, generator=generator))


def _integers_like(like: Tensor, /, *bounds: Any, **kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    return _drawn(torch.empty_like(like), "random_", *(bounds if len(bounds) == 2 else (0, *bounds)))


def _draw_into(method: str, target: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
    generator = kwargs.pop("generator", None)
    numbers = {**_NUMBERS[method], **dict(zip(_NUMBERS[method], args)), **kwargs}
    return target.copy_(_drawn(target, method, *numbers.values(), generator=generator))


def _bernoulli(x: Tensor, p: Any, *, generator: torch.Generator | None = None) -> Any:
    if x.requires_grad:
        return NotImplemented
    return _drawn(torch.empty_like(x, memory_format=torch.contiguous_format), "bernoulli_", p, generator=generator)


def _normal(mean: Any, std: Any, size: Any = None, *, generator: torch.Generator | None = None, **facts: Any) -> Any:
    if isinstance(mean, Tensor) and not isinstance(std, Tensor) and not mean.requires_grad and not facts:
        like = torch.empty_like(mean, memory_format=torch.contiguous_format)
        return _drawn(like, "normal_", 0.0, std, generator=generator).add_(mean)
    if isinstance(std, Tensor) and not isinstance(mean, Tensor) and not std.requires_grad and not facts:
        shift = torch.full((), mean, dtype=std.dtype, device=std.device)
        return torch.normal(0.0, std, generator=generator).add_(shift)
    if size is None or isinstance(mean, Tensor) or isinstance(std, Tensor):
        return NotImplemented
    requires_grad = facts.pop("requires_grad", False)
    result = _drawn(torch.empty(size, **facts), "normal_", mean, std, generator=generator)
    return result.requires_grad_() if requires_grad else result


# The fixed point of SELU, the activation that alpha dropout is made for.
_ALPHA = 1.7580993408473766


def _dropout(
    of_features: bool, keeps_moments: bool, x: Tensor, /, p: Any, training: bool = True, inplace: bool = False
) -> Tensor:
    """Computes dropout of elements, or of whole features, by the steps of torch's CPU implementation."""
    if not training or is_empty(x):
        return x
    if not (of_features or keeps_moments or inplace) and (x.is_cuda or x.is_xpu):
        return native_dropout(x, p)[0]
    shape = [*x.shape[:2], *[1] * (x.dim() - 2)]
    like = torch.empty(shape, dtype=x.dtype, device=x.device) if of_features else torch.empty_like(x)
    kept = torch.ne(_drawn(like, "bernoulli_", 1 - p), 0).to(x.dtype)  # forward saves one byte per element
    multiplied = x.mul_ if inplace else x.mul
    if not keeps_moments:
        return multiplied(kept.div(1 - p))
    scale = 1 / torch.sym_sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = kept.add(-1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
    return multiplied(kept.mul(scale)).add_(shift)


def _dropout_of_features(batched: int, x: Tensor, /, p: Any, training: bool = True, inplace: bool = False) -> Tensor:
    """Computes feature dropout; an input with other than `batched` dimensions gets a batch of size 1."""
    if x.dim() == batched:
        return _dropout(True, False, x, p, training, inplace)
    result = _dropout(True, False, x.unsqueeze(0), p, training, inplace)
    return x if inplace else result.squeeze(0)


def _alpha_dropout(of_features: bool, x: Tensor, /, p: Any, training: bool = False, inplace: bool = False) -> Tensor:
    return _dropout(of_features, True, x, p, training, inplace)


def _native_dropout(x: Tensor, p: Any, train: bool | None) -> Any:
    return native_dropout(x, p) if train else NotImplemented


def _rrelu(
    writes: bool,
    x: Tensor,
    lower: Any = 1 / 8,
    upper: Any = 1 / 3,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> Any:
    writes = writes or inplace
    if not training:
        function = functools.partial(_on_copy, torch.rrelu_) if writes else torch.rrelu
        result = run_with_numbers(function, (x.clone() if writes else x, lower, upper), {})
        return x.copy_(result) if writes else result
    noise = torch.empty_like(x, memory_format=torch.contiguous_format)
    name = "rrelu_with_noise_" if writes else "rrelu_with_noise"
    return getattr(torch.ops.aten, name)(x, noise, lower, upper, True, generator)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """Computes attention; with dropout, by the steps of torch's CPU implementation."""
    function = functional.scaled_dot_product_attention
    facts: Kwargs = {"is_causal": is_causal, "scale": scale}
    if type(dropout_p) in (int, float) and dropout_p == 0:
        return run_with_numbers(function, (query, key, value, attn_mask), {**facts, "enable_gqa": enable_gqa})
    if enable_gqa:
        return NotImplemented
    arguments = (query, key, value, attn_mask, 0.0), facts
    weights = run_with_numbers(_weights, *arguments) if is_symbolic(scale) else _weights(*arguments[0], **facts)
    return torch.matmul(_dropout(False, False, weights, dropout_p), value)


def _weights(*args: Any, **kwargs: Any) -> Any:
    """Returns the attention weights, the factors of the values."""
    return compat.decomposed_attention(*args, **kwargs)[1]


def _normalize(x: Tensor, p: Any = 2.0, dim: Any = 1, eps: Any = 1e-12) -> Any:
    """Divides vectors by their norms; only the norm is a fallback op."""
    norm = run_with_numbers(torch.linalg.vector_norm, (x, p, dim), {"keepdim": True})
    return x / norm.clamp_min(eps).expand_as(x)


# Running statistics


_BATCH_NORMS = (functional.batch_norm, torch.batch_norm)


def _normalized(function: Callable[..., Any], updates: bool, *args: Any, **kwargs: Any) -> Any:
    """Computes a normalization and updates running statistics if requested; `updates` is the default."""
    known = scalar_arguments_of(function)
    assert known is not None
    named = known.named(args, kwargs)
    statistics = {name: named[name] for name in ("running_mean", "running_var") if named.get(name) is not None}
    if len(statistics) < 2 or not named.get("training", named.get("use_input_stats", updates)):
        return run_with_numbers(function, (), named)
    if named["input"].is_cpu and function in _BATCH_NORMS:
        numbers = named.get("momentum", 0.1), named.get("eps", 1e-5)
        mean, variance = statistics.values()
        tensors = named["input"], named.get("weight"), named.get("bias"), mean, variance
        result, *after = batch_norm(*tensors, *numbers)
    else:
        with torch.no_grad():
            before = {name: statistic.clone() for name, statistic in statistics.items()}
        result, *after = run_with_numbers(functools.partial(_with_statistics, function), (), {**named, **before})
    with torch.no_grad():
        for statistic, new in zip(statistics.values(), after):
            statistic.copy_(new)
    return result


def _with_statistics(function: Callable[..., Any], *, running_mean: Tensor, running_var: Tensor, **named: Any) -> Any:
    """Returns the result and the updated statistics."""
    mean, var = running_mean.clone(), running_var.clone()
    return function(**named, running_mean=mean, running_var=var), mean, var


def _embedding(
    rows: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: Any = None,
    norm_type: Any = 2.0,
    *more: Any,
    **facts: Any,
) -> Any:
    """Computes an embedding, after shortening the rows to read."""
    _shorten(weight, rows, max_norm, norm_type)
    return functional.embedding(rows, weight, padding_idx, None, 2.0, *more, **facts)


def _embedding_of_bags(
    rows: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: Any = None,
    norm_type: Any = 2.0,
    *more: Any,
    **facts: Any,
) -> Any:
    """Computes sums of embedding rows, after shortening the rows to read."""
    _shorten(weight, rows, max_norm, norm_type)
    return functional.embedding_bag(rows, weight, offsets, None, 2.0, *more, **facts)


def _shorten(weight: Tensor, rows: Tensor, max_norm: Any, norm_type: Any) -> None:
    if max_norm is not None:
        with torch.no_grad():
            weight.copy_(run_with_numbers(_shortened, (weight, rows, max_norm, norm_type), {}))


def _shortened(weight: Tensor, rows: Tensor, max_norm: float, norm_type: float) -> Tensor:
    return torch.embedding_renorm_(weight.clone(), rows.reshape(-1), max_norm, norm_type)


def _pad(x: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return torch.constant_pad_nd(x, pad, value) if mode == "constant" else NotImplemented


_SPLIT: dict[Any, Callable[..., Any]] = {
    **{method: functools.partial(_draw_into, method) for method in DRAWS},
    **dict.fromkeys((torch.bernoulli, "bernoulli"), _bernoulli),
    torch.normal: _normal,
    "random_": _integers_into,
    torch.randint_like: _integers_like,
    **dict.fromkeys((functional.dropout, torch.dropout), functools.partial(_dropout, False, False)),
    torch.dropout_: functools.partial(_dropout, False, False, inplace=True),
    torch.native_dropout: _native_dropout,
    **dict.fromkeys((torch.feature_dropout, functional.dropout2d), functools.partial(_dropout, True, False)),
    torch.feature_dropout_: functools.partial(_dropout, True, False, inplace=True),
    functional.dropout1d: functools.partial(_dropout_of_features, 3),
    functional.dropout3d: functools.partial(_dropout_of_features, 5),
    torch.alpha_dropout_: functools.partial(_alpha_dropout, False, inplace=True),
    torch.feature_alpha_dropout_: functools.partial(_alpha_dropout, True, inplace=True),
    **dict.fromkeys((functional.alpha_dropout, torch.alpha_dropout), functools.partial(_alpha_dropout, False)),
    **dict.fromkeys(
        (functional.feature_alpha_dropout, torch.feature_alpha_dropout), functools.partial(_alpha_dropout, True)
    ),
    **{
        function: functools.partial(_normalized, function, function is functional.instance_norm)
        for function in (
            *(*_BATCH_NORMS, torch.native_batch_norm),
            *(functional.instance_norm, torch.instance_norm),
        )
    },
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_of_bags,
    functional.pad: _pad,
    functional.normalize: _normalize,
    functional.scaled_dot_product_attention: _attention,
    **dict.fromkeys((functional.rrelu, torch.rrelu), functools.partial(_rrelu, False)),
    torch.rrelu_: functools.partial(_rrelu, True),
    **{update: functools.partial(optimizer_update, update) for update in compat.FUSED_UPDATES},
}
