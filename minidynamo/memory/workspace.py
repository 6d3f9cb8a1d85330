"""Owns what is known of the memory that torch's own kernels take while they run, on top of their results.

Known are kernels of the CPU: pointwise ones and reductions, which convert what they read, some losses, products, and
convolutions, for which oneDNN works on copies in layouts of its own. Which layouts it chooses depends on the processor,
so that is an estimate; the rest was measured with torch's profiler. What others take is not known here.
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
    """A tensor that a kernel reads or makes: what its sizes were when the graph was traced."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that they take, side by side."""
        return self.numel * self.dtype.itemsize


Rule = Callable[[Sequence[Any], Sequence[Operand]], int]
"""The bytes that a kernel takes for its arguments, of which tensors are Operands, and its results."""


def workspace(op: Any, args: Sequence[Any], results: Sequence[Operand]) -> int:
    """The most bytes that a call of `op` takes while it runs, apart from its results."""
    operands = [arg for arg in args if isinstance(arg, Operand)]
    if not operands or not isinstance(op, OpOverload) or any(x.device.type != "cpu" for x in (*operands, *results)):
        return 0
    rule = _RULES.get(op) or (_converted if torch.Tag.pointwise in op.tags else None)
    return 0 if rule is None else rule(args, results)


def workspace_of(op: Any, args: Sequence[Any], made: Any) -> int:
    """The same for tensors without data among the arguments, and what is made of them."""
    if any(value.layout is not torch.strided for value in tensors_in((args, made))):
        return 0
    given = [_operand(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return workspace(op, given, [_operand(value) for value in tensors_in(made)])


def _operand(value: torch.Tensor) -> Operand:
    # Cost only: the bytes that a kernel of torch takes.
    shape, stride = (tuple(map(hint_of, sizes)) for sizes in (value.shape, value.stride()))
    return Operand(shape, stride, value.dtype, value.device)


def _read(args: Sequence[Any]) -> list[Operand]:
    """The arguments that have dimensions: numbers are converted on the fly."""
    return [arg for arg in args if isinstance(arg, Operand) and arg.shape]


def _converted(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """What is read is copied into the type that is computed in."""
    operands = _read(args)
    if not operands or not results:
        return 0
    computed = results[0].dtype
    if computed == torch.bool:
        computed = functools.reduce(torch.promote_types, (one.dtype for one in operands))
    return sum(one.numel for one in operands if one.dtype != computed) * computed.itemsize


def _chosen(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """The same, but that conditions are read as they are."""
    return _converted([one for one in _read(args) if one.dtype != torch.bool], results)


def _summed(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """All is copied into the type of the sum."""
    return sum(one.numel * made.dtype.itemsize for one in _read(args) for made in results if one.dtype != made.dtype)


def _averaged(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Half types are averaged in single precision."""
    return sum(one.numel * 4 for one in _read(args) if one.dtype in (torch.bfloat16, torch.float16))


def _laid_out(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """What does not lie by rows is copied."""
    return sum(one.nbytes for one in _read(args) if one.stride[-1] != 1)


def _resized(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Images are copied, and so is what is made of them."""
    return sum(one.nbytes for one in (*_read(args), *results))


def _elements(times: float) -> Rule:
    """So many numbers for each element of the largest argument."""
    return lambda args, results: int(times * max(one.nbytes for one in _read(args) or results))


def _losses(times: int) -> Rule:
    """So often the losses of all elements, where one number is made of them."""

    def rule(args: Sequence[Any], results: Sequence[Operand]) -> int:
        first, second, *rest = args
        elements = math.prod(torch.broadcast_shapes(first.shape, second.shape))
        losses: int = times * elements * first.dtype.itemsize
        return losses if not rest or rest[0] else 0

    return rule


def _with_logits(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """The losses, and what they are made of, twice as many bytes where one number is made of them."""
    losses: Operand = args[0]
    reduction = args[4] if len(args) > 4 else 1
    return losses.nbytes * (2 if reduction else 1)


def _multiplied(first: int) -> Rule:
    """Matrices that lie neither by rows nor by columns are copied; the two begin at the argument `first`."""

    def rule(args: Sequence[Any], results: Sequence[Operand]) -> int:
        matrices = args[first : first + 2]
        return sum(one.nbytes for one in matrices if isinstance(one, Operand) and not _by_lines(one))

    return rule


def _attention(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Each thread takes the scores of a block, and of each query in it what is made, a maximum and a sum."""
    block, keys, size = _block(*args[:2])
    return torch.get_num_threads() * block * (keys + size + 2) * 4


def _attention_backward(args: Sequence[Any], results: Sequence[Operand]) -> int:
    """Each thread takes the scores of a block, and their gradients; a number of each query in it is there once."""
    block, keys, _ = _block(*args[1:3])
    return (torch.get_num_threads() * 2 * block * keys + block) * 4


def _block(queries: Operand, keys: Operand) -> tuple[int, int, int]:
    """How many queries and keys are in a block, and how large each is."""
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
    if _channels_last(x):  # the weights are copied into that layout, and from there
        return 2 * w.nbytes
    # The operands are copied, the result is made; then it is copied, and the operands are gone.
    return max(x.nbytes + w.nbytes, results[0].nbytes)


def _convolution_backward(args: Sequence[Any], results: Sequence[Operand]) -> int:
    given: Sequence[Operand] = args[:3]
    gradient, x, w = given
    if not _by_onednn(gradient, x, w):
        return 0
    if _channels_last(x) and _channels_last(gradient):
        return x.nbytes + 4 * w.nbytes
    g, x_size, w_size = gradient.nbytes, x.nbytes, w.nbytes
    # First the input's gradient, then the weight's: each is made from copies, then copied.
    return max(g + w_size + x_size, x_size + max(x_size, x_size + g + w_size, 2 * w_size))


def _by_onednn(*operands: Any) -> bool:
    fitting = all(isinstance(one, Operand) and one.dtype == torch.float32 for one in operands)
    return fitting and torch.backends.mkldnn.is_available()


def _channels_last(image: Operand) -> bool:
    return len(image.shape) == 4 and image.stride[1] == 1 and image.stride[3] != 1


_RULES: Mapping[OpOverload, Rule] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList, aten.prod.default, aten.prod.dim_int), _summed),
    **dict.fromkeys((aten.cumsum.default, aten.cumprod.default), _summed),
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default), _losses(2)),
    aten.huber_loss.default: _losses(1),
    aten.binary_cross_entropy_with_logits.default: _with_logits,
    aten.soft_margin_loss_backward.default: _elements(2),
    aten.logsumexp.default: _elements(1),
    aten._euclidean_dist.default: _elements(2),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _multiplied(0)),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), _multiplied(1)),
    **dict.fromkeys((aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor), _chosen),
    **dict.fromkeys((aten.masked_fill_.Scalar, aten.masked_fill_.Tensor), _chosen),
    **dict.fromkeys((aten.mean.default, aten.mean.dim), _averaged),
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default), _laid_out),
    **dict.fromkeys((aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default), _resized),
    **dict.fromkeys((aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec), _resized),
}
