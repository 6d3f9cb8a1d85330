"""Owns the decomposition of ATen operations while the joint graph is traced: the split operations, the formulas of
torch's kernels where torch's own decompositions differ, and the split of operations on lists of tensors.

Listed are the operations that become pointwise operations and reductions, which code generation fuses. Matrix products,
convolutions, pooling, attention and the forward of batch norm stay whole: their kernels are faster than their parts, or
code generation decides when to split. The backward of batch norm is split because torch's kernel needs a workspace as
large as its input. A formula replaces a decomposition of torch that rounds half types after each step, or differs for
NaN or on overflow. Operations on lists, as optimizers use them, become one operation per tensor.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from minidynamo import compat
from minidynamo.compat import OpOverload, foreach_operators
from minidynamo.config import config
from minidynamo.fake.meta_functions import has_dtypes_of_autograd
from minidynamo.graph.marks import marking

aten = torch.ops.aten

_MEAN, _SUM = 1, 2  # how ATen numbers reductions


def _in_float(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `formula`: half types are computed in float32 and rounded once."""

    @functools.wraps(formula)
    def in_float32(*args: Any, **kwargs: Any) -> Tensor:
        dtype = next(arg.dtype for arg in args if isinstance(arg, Tensor))
        if dtype.itemsize != 2:
            return formula(*args, **kwargs)
        converted = (arg.float() if isinstance(arg, Tensor) else arg for arg in args)
        return formula(*converted, **kwargs).to(dtype)

    return in_float32


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss


def _norm(x: Tensor, reduction: int, of_sum: float = 1.0) -> Tensor:
    """Returns the factor of a loss gradient, in the dtype of the elements, as the kernels do."""
    norm = of_sum / x.numel() if reduction == _MEAN else of_sum
    return torch.full((), norm, dtype=x.dtype, device=x.device)


def _mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    difference = x - target
    return _reduced(difference * difference, reduction)


def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced(torch.log1p(torch.exp(-x * target)), reduction)


def _soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    z = torch.exp(-target * x)
    return target * z * -_norm(x, reduction) / (z + 1) * grad


def _mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _norm(x, reduction, 2.0) * (x - target) * grad


@_in_float
def _smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference = x - target
    slope = torch.where(difference.abs() >= beta, torch.sign(difference), difference / beta)
    return slope * (1.0 / x.numel() if reduction == _MEAN else 1.0) * grad


def _huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    difference, norm = x - target, _norm(x, reduction)
    return torch.clamp(difference, -delta, delta) * norm * grad


def _binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    slope = (x - target) * grad / torch.clamp((1 - x) * x, min=1e-12)
    slope = slope if weight is None else slope * weight
    return slope / x.numel() if reduction == _MEAN else slope


def _logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1.0 - eps, 0.0)
    return torch.where((x >= low) & (x <= high), grad / (x * (1 - x)), outside)


def _glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    value, gate = x.chunk(2, dim)
    open_gate = torch.sigmoid(gate)
    return torch.cat([open_gate * grad, _through_gate(open_gate, value, grad)], dim)


@_in_float
def _through_gate(open_gate: Tensor, value: Tensor, grad: Tensor) -> Tensor:
    return (1 - open_gate) * open_gate * value * grad


@_in_float
def _elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    below = alpha * scale if x.dtype == torch.float64 else _as_float32(_as_float32(alpha) * _as_float32(scale))
    inner = grad * input_scale
    return torch.where(
        x > 0, grad * scale, inner * (x + below) if is_result else inner * below * torch.exp(x * input_scale)
    )


def _as_float32(number: float) -> float:
    """Rounds `number` to float32."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


@_in_float
def _hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(
        (x > -3) & (x < 3), grad * _as_float32(1 / 6), 0.0
    )  # the constant is a float32 for doubles as well


@_in_float
def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, grad, grad * (x / 3 + 0.5)))


@_in_float
def _hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x > low) & (x < high), grad, 0.0)


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: Tensor,
) -> Tensor:
    """Computes a gradient that is zero except at the targets, also if the gradient is negative, infinite or NaN."""
    along = 0 if x.dim() < 2 else 1
    shape = [-1 if d == along else 1 for d in range(x.dim())]
    target = (target.reshape(()) if x.dim() == 1 else target).unsqueeze(along)
    grad = grad / total_weight if reduction == _MEAN else grad
    grad = -(grad.unsqueeze(along) if x.dim() > grad.dim() > 0 else grad)
    grad = grad if weight is None else grad * weight.view(shape)
    classes = torch.arange(x.shape[along], device=x.device).view(shape)
    return torch.where((classes == target) & (target != ignored), grad, 0.0).contiguous()


EVERYWHERE: dict[OpOverload, Callable[..., Any]] = {
    aten.mse_loss.default: _mse_loss,
    aten.mse_loss_backward.default: _mse_loss_backward,
    aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
}

ON_CPU: dict[OpOverload, Callable[..., Any]] = {
    aten.binary_cross_entropy_backward.default: _binary_cross_entropy_backward,
    aten.elu_backward.default: _elu_backward,
    aten.glu_backward.default: _glu_backward,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.huber_loss_backward.default: _huber_loss_backward,
    aten.logit_backward.default: _logit_backward,
}
"""Operations whose vectorized CPU kernels compute differently from the GPU kernels."""


def with_kernel_formula(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `split`, or the formula of the kernel of `op` if the results differ."""
    formula, on_cpu = EVERYWHERE.get(op), ON_CPU.get(op)
    if formula is None and on_cpu is None:
        return split

    def compute(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        mixed = len({t.dtype for t in tensors}) > 1
        formula_for_device = on_cpu if formula is None and tensors[0].device.type == "cpu" else formula
        return (split if mixed or formula_for_device is None else formula_for_device)(*args, **kwargs)

    return compute


_UNARY = "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal"
_UNARY += " round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero clone"
_BINARY = "add sub mul div clamp_max clamp_min pow copy lerp"
# Operations whose method has another name, and operations whose method takes the last argument as a keyword.
_RENAMED = {"maximum": "clamp_min", "minimum": "clamp_max"}
_SCALED = {"addcdiv", "addcmul"}
_NAMES = {**{name: name for name in [*_UNARY.split(), *_BINARY.split(), *_SCALED]}, **_RENAMED}


def foreach_table() -> dict[OpOverload, Callable[..., Any]]:
    """Maps each overload on lists to a function that computes the same tensor by tensor."""
    operators = (op for name in _NAMES for op in foreach_operators(name))
    return {op: functools.partial(_per_tensor, op) for op in operators if hasattr(torch.Tensor, _method(op))}


def _method(op: OpOverload) -> str:
    """Returns the tensor method that corresponds to an operator on lists."""
    name = op._schema.name.removeprefix("aten::_foreach_")
    return _NAMES[name.removesuffix("_")] + "_" * name.endswith("_")


def _per_tensor(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    method = _method(op)
    scaled = len(args) > 3 and method.rstrip("_") in _SCALED
    if scaled and isinstance(args[3], torch.Tensor):
        return NotImplemented  # the numbers are in a tensor, which would have to be read
    count = max(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    rows = zip(*(arg if isinstance(arg, (list, tuple)) else [arg] * count for arg in args))
    results = [_single_tensor_call(method, row, kwargs, scaled=scaled) for row in rows]
    return None if method.endswith("_") else results


def _single_tensor_call(method: str, args: Sequence[Any], kwargs: dict[str, Any], *, scaled: bool) -> Any:
    if not isinstance(args[0], torch.Tensor):
        return torch.pow(*args)
    if scaled:
        args, kwargs = args[:3], {**kwargs, "value": args[3]}
    if method.endswith("_"):  # torch does not count writes inside a decomposition
        torch.autograd.graph.increment_version(args[0])
    return getattr(args[0], method)(*args[1:], **kwargs)


# Binary cross entropy is missing: its parts do not check for probabilities.
# Every overload of a listed operation is split. So are operations on lists of tensors, which `foreach_table` lists.
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

    Cached, because finding torch's functions takes longer than tracing a small graph.
    """
    packets = [getattr(aten, name) for name in SPLIT.split()]
    table = compat.get_decompositions(packets)
    for op in (aten.native_batch_norm_backward.default, aten.native_group_norm_backward.default):
        table[op] = _in_layout_of_input(table[op])
    table[aten.native_batch_norm_backward.default] = _unless_strided_half(
        table[aten.native_batch_norm_backward.default]
    )
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
        parts[op] = _unless_errors_are_lost(parts[op])
    for op in parts:
        if "_backward" in op.overloadpacket.__name__:
            parts[op] = _if_autograd_dtypes(op.overloadpacket.__name__, parts[op])
    return marking(parts | foreach_table())


def _copying(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to copy returned arguments, as kernels do; for example dropout with probability 0."""

    def copying(*args: Any, **kwargs: Any) -> Any:
        arguments = {id(arg) for arg in args if isinstance(arg, torch.Tensor)}

        def copy_if_argument(result: Any) -> Any:
            return result.clone() if id(result) in arguments else result

        return map_aggregate(split(*args, **kwargs), copy_if_argument)

    return copying


def _in_layout_of_input(split: Callable[..., Any]) -> Callable[..., Any]:
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


def _unless_errors_are_lost(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep a loss over classes whole if there are no classes, or if the class dimension has stride 0.

    In both cases no generated kernel indexes by the targets, so no kernel would raise the loss's error.
    """

    def decide(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        along = min(x.dim(), 2) - 1
        return NotImplemented if x.shape[along] == 0 or x.stride(along) == 0 else split(x, *args, **kwargs)

    return decide


def _unless_strided_half(split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep half types on a CPU whole if they are not dense: a different kernel rounds intermediate
    results."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def decide(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def is_dense(t: torch.Tensor) -> bool:
            last = formats.get(t.dim())
            return t.is_contiguous() or (last is not None and t.is_contiguous(memory_format=last))

        is_strided_half = x.device.type == "cpu" and x.dtype.itemsize == 2 and not (is_dense(x) and is_dense(grad))
        return NotImplemented if is_strided_half else split(grad, x, *args, **kwargs)

    return decide


def _if_autograd_dtypes(name: str, split: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `split` to keep a gradient whole if autograd never uses its dtypes.

    Torch's kernels refuse such dtypes or return another dtype than the parts would, and fake tensors report other
    dtypes for the statistics from forward than the kernels return.
    """

    def decide(*args: Any, **kwargs: Any) -> Any:
        return split(*args, **kwargs) if has_dtypes_of_autograd(name, (*args, *kwargs.values())) else NotImplemented

    return decide
