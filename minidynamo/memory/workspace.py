"""Owns the workspace of torch's own kernels: the memory that a running kernel takes on top of its results.

There are rules for some CPU kernels:

- pointwise kernels and reductions, which convert their operands;
- some losses, and matrix products;
- convolutions: oneDNN copies operands into its own layouts. The layouts depend on the processor, so the workspace is an
  estimate.

The other rules were measured with torch's profiler. Kernels without a rule count as 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo.compat import OpOverload
from minidynamo.graph.pytree import tensors_in
from minidynamo.graph.unbacked_symints import hint_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Operand:
    """A tensor that a kernel reads or returns, with the sizes of the traced call."""

    #: Sizes in elements.
    shape: tuple[int, ...]
    #: Strides in elements; as long as `shape`.
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the elements without gaps."""
        return self.numel * self.dtype.itemsize


Rule = Callable[[Sequence[Any], Sequence[Operand]], int]
"""`rule(args, results)`: the workspace of a kernel in bytes; tensors are Operands."""


def workspace(op: Any, args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Returns the workspace of a call of `op` in bytes."""
    operands = [arg for arg in args if isinstance(arg, Operand)]
    if not operands or not isinstance(op, OpOverload) or any(x.device.type != "cpu" for x in (*operands, *results)):
        return 0
    rule = _RULES.get(op) or (_conversion_copies if torch.Tag.pointwise in op.tags else None)
    return 0 if rule is None else rule(args, results)


def workspace_of(op: Any, args: Sequence[Any], result: Any) -> int:
    """Returns `workspace` for fake tensors as arguments and result."""
    if any(value.layout is not torch.strided for value in tensors_in((args, result))):
        return 0
    arguments = [_operand(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return workspace(op, arguments, [_operand(value) for value in tensors_in(result)])


def _operand(value: torch.Tensor) -> Operand:
    # For cost only.
    shape, stride = (tuple(map(hint_of, sizes)) for sizes in (value.shape, value.stride()))
    return Operand(shape, stride, value.dtype, value.device)


def _operands(args: Sequence[Any]) -> list[Operand]:
    """Returns the arguments with dimensions: numbers are converted on the fly."""
    return [arg for arg in args if isinstance(arg, Operand) and arg.shape]


def _conversion_copies(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts copies of operands in the type of the computation."""
    operands = _operands(args)
    if not operands or not results:
        return 0
    computed = results[0].dtype
    if computed == torch.bool:
        computed = functools.reduce(torch.promote_types, (operand.dtype for operand in operands))
    return sum(operand.numel for operand in operands if operand.dtype != computed) * computed.itemsize


def _select_copies(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts like `_conversion_copies`, without conditions, which are read unconverted."""
    return _conversion_copies([operand for operand in _operands(args) if operand.dtype != torch.bool], results)


def _sum_copies(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts copies of all operands in the type of the sum."""
    return sum(
        operand.numel * result.dtype.itemsize
        for operand in _operands(args)
        for result in results
        if operand.dtype != result.dtype
    )


def _mean_copies(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts copies of half types in single precision."""
    return sum(operand.numel * 4 for operand in _operands(args) if operand.dtype in (torch.bfloat16, torch.float16))


def _row_copies(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts copies of operands whose last dimension is not contiguous."""
    return sum(operand.nbytes for operand in _operands(args) if operand.stride[-1] != 1)


def _image_copies(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts copies of images, and of the results."""
    return sum(operand.nbytes for operand in (*_operands(args), *results))


def _elements(times: float) -> Rule:
    """Returns a rule that counts `times` the bytes of the largest argument."""
    return lambda args, results: int(times * max(operand.nbytes for operand in _operands(args) or results))


def _losses(times: int) -> Rule:
    """Returns a rule that counts `times` the bytes of the elementwise losses, if the result is a single number."""

    def rule(args: Sequence[Any], results: Sequence[Operand]) -> int:
        first, second, *rest = args
        elements = math.prod(torch.broadcast_shapes(first.shape, second.shape))
        losses: int = times * elements * first.dtype.itemsize
        return losses if not rest or rest[0] else 0

    return rule


def _with_logits(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts the bytes of the elementwise losses, twice if the result is a single number."""
    losses: Operand = args[0]
    reduction = args[4] if len(args) > 4 else 1
    return losses.nbytes * (2 if reduction else 1)


def _matrix_copies(first: int) -> Rule:
    """Returns a rule that counts copies of the matrices, arguments `first` and `first + 1`, that are contiguous neither
    by rows nor by columns."""

    def rule(args: Sequence[Any], results: Sequence[Operand]) -> int:
        matrices = args[first : first + 2]
        return sum(operand.nbytes for operand in matrices if isinstance(operand, Operand) and not _by_lines(operand))

    return rule


def _attention(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts, per thread, the scores of a block, and for each query in it the result, a maximum and a sum."""
    block, keys, size = _block(*args[:2])
    return torch.get_num_threads() * block * (keys + size + 2) * 4


def _attention_backward(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Counts, per thread, the scores of a block and their gradients, and once a number per query of the block."""
    block, keys, _ = _block(*args[1:3])
    return (torch.get_num_threads() * 2 * block * keys + block) * 4


def _block(queries: Operand, keys: Operand) -> tuple[int, int, int]:
    """Returns the number of queries and of keys in a block, and the size of a query."""
    *_, count, size = queries.shape
    most = 256 if count >= 768 else 64 if count >= 192 else 32
    return min(count, most), min(keys.shape[-2], 512), size


def _by_lines(matrix: Operand) -> bool:
    *_, rows, columns = matrix.shape
    *_, down, across = matrix.stride
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def _convolution(args: Sequence[Any], results: Sequence[Operand]) -> int:
    x: Operand = args[0]
    w: Operand = args[1]
    if not results or not _by_onednn(x, w):
        return 0
    if _channels_last(x):  # two copies of the weights: into channels-last, and from there
        return 2 * w.nbytes
    # First the operands are copied, and the result is computed; then the copies are freed, and the result is copied.
    return max(x.nbytes + w.nbytes, results[0].nbytes)


def _convolution_backward(args: Sequence[Any], results: Sequence[Operand]) -> int:
    arguments: Sequence[Operand] = args[:3]
    gradient, x, w = arguments
    if not _by_onednn(gradient, x, w):
        return 0
    if _channels_last(x) and _channels_last(gradient):
        return x.nbytes + 4 * w.nbytes
    g, x_size, w_size = gradient.nbytes, x.nbytes, w.nbytes
    # First the gradient of the input, then of the weight: each is computed from copies, then copied.
    return max(g + w_size + x_size, x_size + max(x_size, x_size + g + w_size, 2 * w_size))


def _by_onednn(*operands: Any) -> bool:
    fitting = all(isinstance(operand, Operand) and operand.dtype == torch.float32 for operand in operands)
    return fitting and torch.backends.mkldnn.is_available()


def _channels_last(image: Operand) -> bool:
    return len(image.shape) == 4 and image.stride[1] == 1 and image.stride[3] != 1


_RULES: Mapping[OpOverload, Rule] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList, aten.prod.default, aten.prod.dim_int), _sum_copies),
    **dict.fromkeys((aten.cumsum.default, aten.cumprod.default), _sum_copies),
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default), _losses(2)),
    aten.huber_loss.default: _losses(1),
    aten.binary_cross_entropy_with_logits.default: _with_logits,
    aten.soft_margin_loss_backward.default: _elements(2),
    aten.logsumexp.default: _elements(1),
    aten._euclidean_dist.default: _elements(2),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _matrix_copies(0)),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), _matrix_copies(1)),
    **dict.fromkeys((aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor), _select_copies),
    **dict.fromkeys((aten.masked_fill_.Scalar, aten.masked_fill_.Tensor), _select_copies),
    **dict.fromkeys((aten.mean.default, aten.mean.dim), _mean_copies),
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default), _row_copies),
    **dict.fromkeys((aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default), _image_copies),
    **dict.fromkeys((aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec), _image_copies),
}

_KEEP_ELEMENTS = frozenset(
    (
        aten.binary_cross_entropy.default,
        aten.mse_loss.default,
        aten.smooth_l1_loss.default,
        aten.soft_margin_loss.default,
    )
)


def keeps_elements(op: Any) -> bool:
    """Returns whether a result that is a single number stays in the memory of the elements: the CPU kernel reduces the
    elements in place. If the number's memory is reused, the elements' memory lives on."""
    return op in _KEEP_ELEMENTS
