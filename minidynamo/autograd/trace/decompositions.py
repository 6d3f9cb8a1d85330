"""Owns the list of ATen operations that are split into smaller ones while the joint graph is traced.

Listed is what becomes pointwise operations and reductions, which code generation fuses. Left whole are matrix
products, convolutions, pooling, attention and batch norm's forward: their kernels are faster than their parts, or code
generation knows when that is so. Batch norm's backward is split because torch's kernel takes scratch memory as large as
its input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.node import map_aggregate

from minidynamo import compat
from minidynamo.autograd.trace.foreach import foreach_table
from minidynamo.autograd.trace.formulas import as_kernels_do, nll_loss_backward
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.fake.gradient_dtypes import are_of_autograd
from minidynamo.graph.decomposed import noting

aten = torch.ops.aten

# Binary cross entropy is not among them, since its parts do not check that what it takes are probabilities.
# Every overload of these is split, and operations on lists of tensors (`foreach.py`).
SPLIT = """
    binary_cross_entropy_backward binary_cross_entropy_with_logits
    elu_backward gelu_backward glu_backward
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh_backward huber_loss_backward
    leaky_relu_backward log_sigmoid_backward log_sigmoid_forward logit_backward
    mish_backward mse_loss mse_loss_backward
    native_batch_norm_backward native_dropout native_dropout_backward native_group_norm_backward
    native_layer_norm_backward
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    rrelu_with_noise_backward select_backward sigmoid_backward silu silu_backward slice_backward
    smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softplus_backward
    softshrink_backward
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    tanh_backward threshold_backward
"""


# Their parts let forward keep a mask of one byte per element, where the whole would read the activation again.
MASKED = """
    hardtanh_backward leaky_relu_backward threshold_backward
"""


# Torch's kernels for a CPU round half types after each addition, or on other ways in the last elements than in those
# that fill vectors.
ROUNDED_ON_THE_WAY = """
    huber_loss_backward nll_loss_forward nll_loss2d_forward smooth_l1_loss
"""


# What torch's kernels for a CPU lay out row by row, whatever their arguments are.
ROW_MAJOR = """
    log_sigmoid_forward _log_softmax_backward_data native_layer_norm_backward nll_loss2d_forward
"""


def masked() -> frozenset[OpOverload]:
    """Operators that are better split even where code generation knows them whole: less is kept for backward."""
    return frozenset(getattr(aten, name).default for name in MASKED.split())


def splittable() -> frozenset[OpOverload]:
    """Every operator that `decomposition_table` would split; as `keep` it leaves all of them whole."""
    return frozenset(decomposition_table())


def decomposition_table(keep: Collection[OpOverload] = ()) -> dict[OpOverload, Callable[..., Any]]:
    """Operator overload -> function that computes it with smaller operators; without those in `keep`.

    Empty when `config.decompose` is off.
    """
    return {op: split for op, split in _all_parts().items() if op not in keep} if config.decompose else {}


@functools.cache
def _all_parts() -> dict[OpOverload, Callable[..., Any]]:
    """What `decomposition_table` chooses from. Finding torch's functions takes longer than tracing a small graph."""
    packets = [getattr(aten, name) for name in SPLIT.split()]
    table = compat.get_decompositions(packets)
    for op in (aten.native_batch_norm_backward.default, aten.native_group_norm_backward.default):
        table[op] = _laid_out_as_input(table[op])
    table[aten.native_batch_norm_backward.default] = _unless_half_steps(table[aten.native_batch_norm_backward.default])
    table |= dict.fromkeys((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default), nll_loss_backward)
    for op in (getattr(aten, name).default for name in ROW_MAJOR.split()):
        table[op] = _row_major(table[op])
    parts = {op: _copying(as_kernels_do(op, split)) for op, split in table.items() if isinstance(op, OpOverload)}
    parts[aten.native_dropout.default] = _if_parts_draw_as(parts[aten.native_dropout.default])
    smooth = aten.smooth_l1_loss.default
    parts[smooth] = _unless_negative(parts[smooth])
    for name in ROUNDED_ON_THE_WAY.split():
        op = getattr(aten, name).default
        parts[op] = _unless_half(parts[op])
    for op in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
        parts[op] = _unless_unchecked(parts[op])
    for op in parts:
        if "_backward" in op.overloadpacket.__name__:
            parts[op] = _if_of_autograd(op.overloadpacket.__name__, parts[op])
    return noting(parts | foreach_table())


def _copying(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but with a copy of an argument that it returns, as kernels do: dropout that drops nothing, say."""

    def copying(*args: Any, **kwargs: Any) -> Any:
        given = {id(arg) for arg in args if isinstance(arg, torch.Tensor)}

        def own(made: Any) -> Any:
            return made.clone() if id(made) in given else made

        return map_aggregate(split(*args, **kwargs), own)

    return copying


def _laid_out_as_input(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, with the gradient of the input, the first result, laid out as kernels for a CPU do it: channels last if
    they are last in the input. A copy says so, since the other gradient may come in another order than it is traced in.
    """

    def laid_out(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made, *others = split(grad, x, *args, **kwargs)
        if made is not None and made.device.type == "cpu":
            made = made.clone(memory_format=compat.suggest_memory_format(x))
        return (made, *others)

    return laid_out


def _row_major(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, with results laid out as the whole operation lays them out on a CPU, whatever its arguments are."""

    def contiguous(*args: Any, **kwargs: Any) -> Any:
        return map_aggregate(split(*args, **kwargs), in_order)

    def in_order(made: Any) -> Any:
        return made.contiguous() if isinstance(made, torch.Tensor) and made.device.type == "cpu" else made

    return contiguous


def _if_parts_draw_as(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but dropout that draws stays whole: its kernels draw other numbers than its parts would."""

    def decide(x: torch.Tensor, p: float, train: bool | None) -> Any:
        return split(x, p, train) if train is False else NotImplemented

    return decide


def _unless_negative(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but a loss whose beta is negative stays whole, to raise its error."""

    def decide(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
        return NotImplemented if beta < 0 else split(x, target, reduction, beta)

    return decide


def _unless_half(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but half types on a CPU stay whole."""

    def decide(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_half = x.device.type == "cpu" and x.dtype.itemsize == 2
        return NotImplemented if is_half else split(x, *args, **kwargs)

    return decide


def _unless_unchecked(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but a loss over classes stays whole where there are none, or one element stands for all of them: no
    generated kernel reads by the targets then, so that none would raise the loss's error."""

    def decide(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        along = min(x.dim(), 2) - 1
        return NotImplemented if x.shape[along] == 0 or x.stride(along) == 0 else split(x, *args, **kwargs)

    return decide


def _unless_half_steps(split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but half types on a CPU that do not lie in order stay whole: another kernel rounds them on the way."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def decide(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def in_order(t: torch.Tensor) -> bool:
            last = formats.get(t.dim())
            return t.is_contiguous() or (last is not None and t.is_contiguous(memory_format=last))

        steps = x.device.type == "cpu" and x.dtype.itemsize == 2 and not (in_order(x) and in_order(grad))
        return NotImplemented if steps else split(grad, x, *args, **kwargs)

    return decide


def _if_of_autograd(name: str, split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, but a gradient of other dtypes than autograd asks for it with stays whole: torch's kernels refuse them
    or say another dtype of the result than the parts would, and fake tensors say something else of the statistics that
    forward made than what kernels return."""

    def decide(*args: Any, **kwargs: Any) -> Any:
        return split(*args, **kwargs) if are_of_autograd(name, (*args, *kwargs.values())) else NotImplemented

    return decide
