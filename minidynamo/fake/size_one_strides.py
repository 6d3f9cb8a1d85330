"""Owns the strides that eager gives dimensions of one element, and tensors of none, with which torch is careless on
tensors without data.

No address hangs on them, but programs see them. Sizes may be symbols: rules compare what they are in the call that is
compiled for, without a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.compat import OpOverload
from minidynamo.fake.strides import dense_strides, is_dense
from minidynamo.graph.unbacked_symints import hint_of

aten = torch.ops.aten

Strides = Sequence[Any] | None

Rule = Callable[[torch.Tensor, Sequence[Any]], Strides]
"""Strides of a result that torch foretells, from the operands; None where torch is right."""


def rule_for(op: OpOverload, kwargs: Mapping[str, Any]) -> Rule | None:
    """The rule of an operation for dimensions of one element."""
    if op._schema.is_mutable or kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    return RULES.get(op, as_iterated if torch.Tag.pointwise in op.tags else None)


def with_places_of_one(rule: Rule, result: torch.Tensor, op: OpOverload, args: Sequence[Any]) -> torch.Tensor:
    """A result as torch foretells it, but for dimensions of one element; as it is where a rule is wrong of others. What
    has no elements lies as the rule says."""
    strides = rule(result, _operands(op, args))
    if strides is None:
        return result
    sizes = [*zip(result.shape, strides, result.stride())]
    if not _is_empty(result):
        # Layout only: compares the strides of this call.
        if any(hint_of(own) != hint_of(foretold) for size, own, foretold in sizes if not _is_one(size)):
            return result
        strides = [own if _is_one(size) else foretold for size, own, foretold in sizes]
    if all(type(own) is int and own == foretold for own, foretold in zip(strides, result.stride())):
        return result
    if op.is_view:
        return result.as_strided(result.shape, strides)
    return result.new_empty_strided(result.shape, strides)


def has_places_of_one(tensor: torch.Tensor) -> bool:
    """Whether a tensor has dimensions that are known to have one element, or none."""
    return any(map(_is_one, tensor.shape)) or _is_empty(tensor)


def _is_empty(tensor: torch.Tensor) -> bool:
    return any(type(size) is int and size == 0 for size in tensor.shape)


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _operands(op: OpOverload, args: Sequence[Any]) -> list[Any]:
    """The arguments that eager takes for tensors, which numbers may stand for, and the sizes of a view."""
    arguments = [str(argument.type) for argument in op._schema.arguments]
    if op._overloadname == "Scalar":
        arguments[1] = "Tensor"
    return [value for value, kind in zip(args, arguments) if "Tensor" in kind or kind == "List[int]"]


def _now(numbers: Iterable[Any]) -> tuple[int, ...]:
    """Return numbers as they are in this call, for strides alone."""
    return tuple(map(hint_of, numbers))


def _rows(dim: int) -> list[int]:
    return [*reversed(range(dim))]


def _row_major(result: torch.Tensor, operands: Sequence[Any]) -> Sequence[Any]:
    return dense_strides(_rows(result.dim()), result.shape, torch.sym_max)


def _as_allocated(result: torch.Tensor, operands: Sequence[Any]) -> Strides:
    """As eager lays out what is like the first argument; one without elements as that itself."""
    like = operands[0]
    return like.stride() if _is_empty(like) or _is_dense(_now(like.shape), _now(like.stride())) else None


def as_iterated(result: torch.Tensor, operands: Sequence[Any]) -> Sequence[Any]:
    """As eager's iterator lays out what it makes of `operands`, numbers among them."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    shape, strides = _now(result.shape), [_now(tensor.stride()) for tensor in tensors]
    alike = [_now(tensor.shape) == shape for tensor in tensors if tensor.dim()]
    if all(alike) and len(alike) == len(operands):
        for order in (_rows(len(shape)), [1, 3, 2, 0])[: 1 + (len(shape) == 4)]:
            if all(_is_dense_in(order, shape, each) for each in strides):
                return dense_strides(order, result.shape, torch.sym_max)
        if len(set(strides)) == 1 and _is_dense(shape, strides[0]):
            return tensors[0].stride()
    given = [_strides_in(tensor, shape) for tensor in tensors if tensor.dim()]
    order = _iterated(shape, given)
    by_rows = _is_empty(result) and order == _rows(len(shape))
    return dense_strides(order, result.shape, torch.sym_max if by_rows else lambda size, _: size)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """What torch takes for dense: dimensions without elements do not count either."""
    several = [(size, stride) for size, stride in zip(shape, strides) if size > 1]
    return is_dense([size for size, _ in several], [stride for _, stride in several])


def _is_dense_in(order: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> bool:
    dense = dense_strides(order, shape)
    return 0 in shape or all(size == 1 or one == other for size, one, other in zip(shape, strides, dense))


def _strides_in(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """The strides of a tensor that is broadcast; 0 where it has no say."""
    missing = [0] * (len(shape) - tensor.dim())
    sizes = zip(_now(tensor.stride()), _now(tensor.shape), shape[len(missing) :])
    return missing + [0 if size == 1 and wanted != 1 else stride for stride, size, wanted in sizes]


def _iterated(shape: Sequence[int], given: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions from the innermost on; the first tensor in which two differ says which is the inner one."""

    def is_inner(one: int, other: int) -> bool | None:
        for strides in given:
            if strides[one] and strides[other] and strides[one] != strides[other]:
                return strides[one] < strides[other]
            if strides[one] and strides[one] == strides[other] and shape[one] > shape[other]:
                return False
        return None

    order: list[int] = []
    for dim in reversed(range(len(shape))):
        order.append(dim)
        place = len(order) - 1
        for before in reversed(range(place)):
            inner = is_inner(order[before], order[place])
            if inner is False:
                order[before], order[place] = order[place], order[before]
                place = before
            elif inner:
                break
    return order


def _seen_as(result: torch.Tensor, operands: Sequence[Any]) -> Strides:
    """As eager's views with other sizes: each run of dimensions without gaps is cut into new ones, from the innermost
    on."""
    viewed = operands[0]
    old, given, new = _now(viewed.shape), _now(viewed.stride()), _now(result.shape)
    if not viewed.dim() or 0 in old:
        return None if 0 in old else [1] * len(new)
    strides: list[Any] = [1] * len(new)
    place, base = len(new) - 1, viewed.stride(-1)
    begin, reached, made = 1, 1, 1
    for dim in reversed(range(len(old))):
        begin *= old[dim]
        # Layout only: whether two dimensions are adjacent in memory.
        if dim and (old[dim - 1] == 1 or given[dim - 1] == begin * hint_of(base)):
            continue
        while place >= 0 and (reached < begin or new[place] == 1):
            strides[place] = made * base
            reached, made = reached * new[place], made * result.shape[place]
            place -= 1
        if dim:
            base, begin, reached, made = viewed.stride(dim - 1), 1, 1, 1
    return strides


def _dropped_out(result: torch.Tensor, operands: Sequence[Any]) -> Strides:
    """A mask like the argument, or a product with it, of which each is laid out as the other."""
    allocated = result.dtype is torch.bool or _is_empty(result)
    return _as_allocated(result, operands) if allocated else as_iterated(result, [*operands] * 2)


def _rolled(result: torch.Tensor, operands: Sequence[Any]) -> Strides:
    """Without elements, a copy; without dimensions, of one long row."""
    if not _is_empty(result):
        return None
    return _as_allocated(result, operands) if operands[2:] and operands[2] else _row_major(result, operands)


def _of_target(result: torch.Tensor, operands: Sequence[Any]) -> Strides:
    """Of a loss that is computed in what is made like the target."""
    _, target, *_ = operands
    return _as_allocated(result, [target]) or as_iterated(result, [target, 1])


def _expanded(result: torch.Tensor, operands: Sequence[Any]) -> Strides:
    """Of a tensor without dimensions."""
    return None if operands[0].dim() else [0] * result.dim()


_ALLOCATED = """
    _prelu_kernel.default _to_copy.default clone.default empty_like.default flip.default frexp.Tensor full_like.default
    hardtanh.default huber_loss.default index_put.default nan_to_num.default ones_like.default rand_like.default
    randint_like.default randint_like.low_dtype randn_like.default sort.default sort.stable zeros_like.default
"""
_ITERATED = "complex.default mse_loss.default polar.default smooth_l1_loss.default"
_ROW_MAJOR = """
    _log_softmax.default amax.default amin.default index_add.default index_copy.default linalg_vector_norm.default
    masked_fill.Scalar masked_fill.Tensor native_layer_norm.default prod.dim_int renorm.default sum.dim_IntList
    tril.default triu.default
"""


def _each(rule: Rule, names: str) -> dict[OpOverload, Rule]:
    return {operator.attrgetter(name)(aten): rule for name in names.split()}


RULES: dict[OpOverload, Rule] = {
    **_each(_as_allocated, _ALLOCATED),
    **_each(as_iterated, _ITERATED),
    **_each(_row_major, _ROW_MAJOR),
    **_each(_seen_as, "_unsafe_view.default view.default"),
    aten.binary_cross_entropy_with_logits.default: _of_target,
    aten.expand.default: _expanded,
    aten.native_dropout.default: _dropped_out,
    aten.roll.default: _rolled,
}
"""The rules of what is no operation element by element, which the iterator lays out."""
