"""Owns the list of ATen operations that are split into smaller operations while the joint graph is traced.

Listed are the operations that become pointwise operations and reductions, which code generation fuses. Matrix products,
convolutions, pooling, attention and the forward of batch norm stay whole: their kernels are faster than their parts, or
code generation decides when to split. The backward of batch norm is split because torch's kernel needs a workspace as
large as its input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.node import map_aggregate

from minidynamo import compat
from minidynamo.autograd.trace.foreach import foreach_table
from minidynamo.autograd.trace.formulas import nll_loss_backward, with_kernel_formula
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.fake.gradient_dtypes import are_of_autograd
from minidynamo.graph.decomposed import marking

aten = torch.ops.aten

# Binary cross entropy is missing: its parts do not check for probabilities.
# Every overload of a listed operation is split. So are operations on lists of tensors, which `foreach.py` lists.
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


# The parts let forward save a mask of one byte per element; the whole operation would need the activation.
MASKED = """
    hardtanh_backward leaky_relu_backward threshold_backward
"""


# Torch's CPU kernels round half types after each addition, or round the last elements, which do not fill a vector,
# differently.
ROUNDED_IN_STEPS = """
    huber_loss_backward nll_loss_forward nll_loss2d_forward smooth_l1_loss
"""


# Torch's CPU kernels return results in row-major order for every argument layout.
ROW_MAJOR = """
    log_sigmoid_forward _log_softmax_backward_data native_layer_norm_backward nll_loss2d_forward
"""


def masked() -> frozenset[OpOverload]:
    """Returns the operators to split even if code generation can lower the whole operator: backward then needs less
    memory."""
    return frozenset(getattr(aten, name).default for name in MASKED.split())


def splittable() -> frozenset[OpOverload]:
    """Returns every operator that `decomposition_table` would split; passed as `keep`, the set leaves all operators
    whole."""
    return frozenset(decomposition_table())


def decomposition_table(keep: Collection[OpOverload] = ()) -> dict[OpOverload, Callable[..., Any]]:
    """Maps operator overloads, except `keep`, to functions that compute the operators with smaller operators.

    Empty when `config.decompose` is off.
    """
    return {op: split for op, split in _full_table().items() if op not in keep} if config.decompose else {}


@functools.cache
def _full_table() -> dict[OpOverload, Callable[..., Any]]:
    """Returns the table from which `decomposition_table` selects.

    Cached: finding torch's functions takes longer than tracing a small graph.
    """
    packets = [getattr(aten, name) for name in SPLIT.split()]
    table = compat.get_decompositions(packets)
    for op in (aten.native_batch_norm_backward.default, aten.native_group_norm_backward.default):
        table[op] = _laid_out_as_input(table[op])
    table[aten.native_batch_norm_backward.default] = _unless_half_steps(table[aten.native_batch_norm_backward.default])
    table |= dict.fromkeys((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default), nll_loss_backward)
    for op in (getattr(aten, name).default for name in ROW_MAJOR.split()):
        table[op] = _row_major(table[op])
    parts = {op: _copying(with_kernel_formula(op, split)) for op, split in table.items() if isinstance(op, OpOverload)}
    parts[aten.native_dropout.default] = _unless_drawing(parts[aten.native_dropout.default])
    smooth = aten.smooth_l1_loss.default
    parts[smooth] = _unless_negative(parts[smooth])
    for name in ROUNDED_IN_STEPS.split():
        op = getattr(aten, name).default
        parts[op] = _unless_half(parts[op])
    for op in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
        parts[op] = _unless_unchecked(parts[op])
    for op in parts:
        if "_backward" in op.overloadpacket.__name__:
            parts[op] = _if_of_autograd(op.overloadpacket.__name__, parts[op])
    return marking(parts | foreach_table())


def _copying(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to copy returned arguments, as kernels do; for example dropout with probability 0."""

    def copying(*args: Any, **kwargs: Any) -> Any:
        arguments = {id(arg) for arg in args if isinstance(arg, torch.Tensor)}

        def own(result: Any) -> Any:
            return result.clone() if id(result) in arguments else result

        return map_aggregate(split(*args, **kwargs), own)

    return copying


def _laid_out_as_input(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to lay out the gradient of the input, the first result, as CPU kernels do: channels last if the
    input is.

    The copy fixes the layout, since the incoming gradient may have other strides than the traced gradient.
    """

    def laid_out(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result, *others = split(grad, x, *args, **kwargs)
        if result is not None and result.device.type == "cpu":
            result = result.clone(memory_format=compat.suggest_memory_format(x))
        return (result, *others)

    return laid_out


def _row_major(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to lay out results as the whole operation does on a CPU, for every argument layout."""

    def contiguous(*args: Any, **kwargs: Any) -> Any:
        return map_aggregate(split(*args, **kwargs), in_order)

    def in_order(result: Any) -> Any:
        return result.contiguous() if isinstance(result, torch.Tensor) and result.device.type == "cpu" else result

    return contiguous


def _unless_drawing(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep dropout in training whole: kernel and parts draw different random numbers."""

    def decide(x: torch.Tensor, p: float, train: bool | None) -> Any:
        return split(x, p, train) if train is False else NotImplemented

    return decide


def _unless_negative(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep a loss with a negative beta whole, because only the whole operator raises an error."""

    def decide(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
        return NotImplemented if beta < 0 else split(x, target, reduction, beta)

    return decide


def _unless_half(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep half types on a CPU whole."""

    def decide(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_half = x.device.type == "cpu" and x.dtype.itemsize == 2
        return NotImplemented if is_half else split(x, *args, **kwargs)

    return decide


def _unless_unchecked(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep a loss over classes whole if there are no classes, or if the class dimension has stride 0.

    In both cases no generated kernel indexes by the targets, so no kernel would raise the loss's error.
    """

    def decide(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        along = min(x.dim(), 2) - 1
        return NotImplemented if x.shape[along] == 0 or x.stride(along) == 0 else split(x, *args, **kwargs)

    return decide


def _unless_half_steps(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep half types on a CPU whole if they are not dense: a different kernel rounds intermediate
    results."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def decide(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def in_order(t: torch.Tensor) -> bool:
            last = formats.get(t.dim())
            return t.is_contiguous() or (last is not None and t.is_contiguous(memory_format=last))

        steps = x.device.type == "cpu" and x.dtype.itemsize == 2 and not (in_order(x) and in_order(grad))
        return NotImplemented if steps else split(grad, x, *args, **kwargs)

    return decide


def _if_of_autograd(name: str, split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep a gradient whole if autograd never uses its dtypes.

    Torch's kernels refuse such dtypes or return another dtype than the parts would, and fake tensors report other
    dtypes for the statistics from forward than the kernels return.
    """

    def decide(*args: Any, **kwargs: Any) -> Any:
        return split(*args, **kwargs) if are_of_autograd(name, (*args, *kwargs.values())) else NotImplemented

    return decide
