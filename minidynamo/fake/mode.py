"""Owns the mode in which operations run on tensors without data, with the strides, dtypes and errors of eager, also for
views of inference tensors.

torch's own mode is wrong for operations described by other operations than eager runs. Tables correct strides and
dtypes; sizes are torch's.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.compat import OpOverload
from minidynamo.fake.meta_functions import META_FUNCTIONS
from minidynamo.fake.strides import elementwise_strides, is_dense
from minidynamo.graph.checked_results import is_found_wrong

aten = torch.ops.aten

Rule = Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]
"""Builds a corrected result from torch's fake result and the arguments."""


def _elementwise(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays the result out as an elementwise kernel does: in the dimension order of the arguments, the first argument
    first. Tensors of one number and repeated dimensions (stride 0) have no effect on the order, except in an argument
    that eager first copies to another dtype.
    """
    tensors = [t for t in args if isinstance(t, torch.Tensor)]
    common = compat.computed_dtype(*tensors)
    if result.dtype.is_floating_point and not (common.is_floating_point or common.is_complex):
        common = result.dtype
    return _in_common_order(
        result, [t if t.dtype == common or t.device.type != "cpu" else _as_copied(t) for t in tensors]
    )


def _in_common_order(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    strides = elementwise_strides(result, tensors)
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _rule_of(op: OpOverload, args: Sequence[Any]) -> Rule | None:
    """Returns the rule that corrects the layout of a result; None if torch's fake layout is eager's.

    Elementwise operations need a rule for repeated dimensions: eager computes half types directly, but torch's fake
    mode copies them to a larger type.
    """
    if op in RULES or not _is_iterated(op):
        return RULES.get(op)
    tensors = [t for t in args if isinstance(t, torch.Tensor) and t.dim()]
    return _elementwise if len(tensors) > 1 and any(map(_repeats, tensors)) else None


def _row_major(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    return torch.empty(result.shape, dtype=result.dtype, device=result.device)


def _row_major_unless_broadcast(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays out the gradient of a loss. Eager computes the gradient into row-major zeros, or, if the input (the second
    argument) is broadcast, elementwise from target and gradient.
    """
    gradient, x, target, *_ = args
    is_whole = x.dim() == result.dim() and x.shape == result.shape
    return _row_major(result, args) if is_whole else _elementwise(result, [target, gradient])


def _like_the_gradient(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays the result out like the gradient, the first argument; like torch's fake result if the gradient is
    broadcast.
    """
    is_whole = args[0].dim() == result.dim() and args[0].shape == result.shape
    return _like_the_first(result, args) if is_whole else result


def _like_the_first(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    return torch.empty_like(args[0], dtype=result.dtype)


def _like_the_second(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    return torch.empty_like(args[1], dtype=result.dtype)


def _channels_last_or_not(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays the result out with channels last if the first argument has channels last, else row-major."""
    wanted = compat.suggest_memory_format(args[0])
    return torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=wanted)


def _like_the_normalized(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays the result out like the normalized tensor, the second argument after the gradient."""
    return _channels_last_or_not(result, args[1:])


def _scaled_by_a_power(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays out a product with a power of two: one elementwise operation, or, for float32, a row-major power and then a
    product.
    """
    x, exponent = args
    in_two_steps = x.dtype == torch.float32 and exponent.dtype.is_floating_point
    return _elementwise(result, [x, exponent.new_empty(exponent.shape) if in_two_steps else exponent])


def _pooled_volumes(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Returns torch's fake result, but with channels last if the first argument has no batch, and channels last."""
    if result.dim() == 4 and args[0].movedim(0, -1).is_contiguous():
        return result.new_empty(result.movedim(0, -1).shape).movedim(-1, 0)
    return result


def _rolled(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays out concatenated slices of the first argument; without dimensions, slices of the flattened tensor."""
    return _channels_last_or_not(result, args) if len(args) > 2 and args[2] else result


def _indexed(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Lays out the result of indexing as an elementwise kernel over the result does, which reads the tensor and the
    indices; torch's fake mode ignores the indices. With masks, whose number of selected elements is unknown, it
    returns torch's fake result.
    """
    x, indices = args
    dims = [d for d, index in enumerate(indices) if index is not None]
    own = [indices[d] for d in dims]
    if any(index.dtype in (torch.bool, torch.uint8) for index in own):
        return result
    if dims != [*range(dims[0], dims[-1] + 1)]:
        x, dims = x.movedim(dims, [*range(len(dims))]), [*range(len(dims))]
    own = torch.broadcast_tensors(*own)
    shape, first, trailing = own[0].shape, dims[0], x.dim() - dims[-1] - 1
    strides = (*x.stride()[:first], *[0] * len(shape), *x.stride()[dims[-1] + 1 :])
    read = x.as_strided(result.shape, strides)
    return _in_common_order(result, [read, *(index.reshape(*[1] * first, *shape, *[1] * trailing) for index in own)])


def _row_major_if_complex(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    return _row_major(result, args) if args[0].dtype.is_complex else result


def _second_first(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    first, second, *_ = args
    return _elementwise(result, [second, first])


def _on_cpu(rule: Rule) -> Rule:
    return lambda result, args: rule(result, args) if result.device.type == "cpu" else result


_BATCH_NORMS = (
    aten.native_batch_norm.default,
    aten._batch_norm_no_update.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
)

RULES: dict[OpOverload, Rule] = {
    **dict.fromkeys(
        (
            aten.complex.default,
            aten.copysign.Tensor,
            aten.div.Tensor_mode,
            aten.elu_backward.default,
            aten.floor_divide.default,
            aten.hardshrink_backward.default,
            aten.hardsigmoid_backward.default,
            aten.hardswish_backward.default,
            aten.hardtanh_backward.default,
            aten.heaviside.default,
            aten.logaddexp.default,
            aten.logaddexp2.default,
            aten.logical_and.default,
            aten.logical_or.default,
            aten.logical_xor.default,
            aten.logit_backward.default,
            aten.native_dropout_backward.default,
            aten.softplus_backward.default,
            aten.special_xlog1py.default,
            aten.xlogy.Tensor,
        ),
        _elementwise,
    ),
    aten.angle.default: _on_cpu(_row_major_if_complex),
    aten.binary_cross_entropy.default: _like_the_first,
    aten.binary_cross_entropy_backward.default: _like_the_second,
    aten.huber_loss.default: _like_the_first,
    **dict.fromkeys(
        (
            aten.huber_loss_backward.default,
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
        ),
        _row_major_unless_broadcast,
    ),
    aten.index.Tensor: _indexed,
    aten.isin.Tensor_Scalar: _row_major,
    aten.isin.Tensor_Tensor: _row_major,
    aten.ldexp.Tensor: _scaled_by_a_power,
    aten._log_softmax_backward_data.default: _on_cpu(_row_major),
    aten.leaky_relu_backward.default: _second_first,
    aten.log_sigmoid_backward.default: _on_cpu(_like_the_gradient),
    aten.log_sigmoid_forward.default: _on_cpu(_row_major),
    aten.max_pool3d_with_indices.default: _on_cpu(_pooled_volumes),
    aten.max_unpool2d.default: _channels_last_or_not,
    **dict.fromkeys(_BATCH_NORMS, _on_cpu(_channels_last_or_not)),
    aten.channel_shuffle.default: _on_cpu(_channels_last_or_not),
    aten.native_channel_shuffle.default: _on_cpu(_channels_last_or_not),
    aten.native_batch_norm_backward.default: _on_cpu(_like_the_normalized),
    aten.native_group_norm_backward.default: _on_cpu(_like_the_normalized),
    aten.native_layer_norm_backward.default: _on_cpu(_row_major),
    aten.nll_loss2d_forward.default: _row_major,
    aten.normal.Tensor_Tensor: _row_major,
    aten.pow.Scalar: _row_major,
    aten.roll.default: _on_cpu(_rolled),
    aten.rrelu_with_noise.default: _on_cpu(_row_major),
    aten.threshold_backward.default: _second_first,
}
"""Operations that eager lays out differently from torch's fake mode. A rule applies to all results with the first
result's shape.
"""

COPIES: dict[OpOverload, dict[int, int]] = {
    aten._batch_norm_with_update_functional.default: {4: 3, 5: 4},
    aten._native_batch_norm_legit_functional.default: {3: 3, 4: 4},
    aten.native_dropout.default: {0: 0},
}
"""Operation -> result index -> index of the argument that the result copies: running statistics of half types keep
their dtype, and dropout that drops nothing returns a copy.
"""

DTYPE_OF_FIRST = frozenset({aten.huber_loss.default})
"""Operations with the dtype of their first argument, where torch's fake mode returns the common dtype."""


def _dtype_of_scaled(x: torch.Tensor, exponent: torch.Tensor) -> torch.dtype:
    """Returns the dtype of `x` times a power of two. A floating-point `x` keeps its dtype if the exponent is a tensor
    of integers. Otherwise the power takes part in type promotion, with the number of dimensions of the exponent.
    """
    whole = not (exponent.is_floating_point() or exponent.is_complex() or exponent.dtype is torch.bool)
    if whole and x.is_floating_point():
        return x.dtype
    return torch.result_type(x, exponent.new_empty(exponent.shape, dtype=torch.result_type(exponent, 2.0)))


def _has_dtype_of_first(op: OpOverload, args: Sequence[Any]) -> bool:
    # For a bool to the power of a bool, torch's fake mode returns an integer.
    return op in DTYPE_OF_FIRST or (op is aten.pow.Tensor_Scalar and type(args[1]) is bool)


LAYOUT_OF_FIRST = frozenset({aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default})
"""Operations whose result has the layout of the first argument, or of a copy if elements of the argument overlap. torch
2.11 keeps the overlap in the fake result.
"""

SIZED_BY_DATA = frozenset({aten._unique.default})
"""Operations that torch 2.11 would run on zeros to find the size of the result."""

WINDOWS: dict[OpOverload, OpOverload] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
}
"""Operations that replace a slice -> operation that reads the slice. torch's fake mode does not check that the slice
exists, and has the shape of its replacement.
"""

DIMENSIONS = frozenset({aten._softmax.default, aten.sort.default})
"""Operations with a dimension as second argument, which torch's fake mode does not check."""

_PASSED_WHOLE = """
    dropout.default broadcast_tensors.default matmul.default one_hot.default pad_sequence.default
    unsafe_chunk.default tensor_split.tensor_indices_or_sections stft.center istft.default
    gru.input gru.data lstm.input lstm.data rnn_relu.input rnn_relu.data rnn_tanh.input rnn_tanh.data
    upsample_linear1d.vec upsample_bilinear2d.vec upsample_bicubic2d.vec upsample_trilinear3d.vec
    upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec
    _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec
    _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec
"""


def _decomposed(op: OpOverload, *, whole: bool = False) -> Callable[..., Any]:
    run = compat.composite_function(op)

    def composed(*args: Any, **kwargs: Any) -> Any:
        symbols = _has_symbols((args, kwargs))
        if symbols and whole:
            return NotImplemented
        with compat.recording_views():
            return op.decompose(*args, **kwargs) if symbols else run(*args, **kwargs)

    return composed


def _has_symbols(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    if isinstance(value, (list, tuple)):
        return any(map(_has_symbols, value))
    return _has_symbols([*value.values()]) if isinstance(value, dict) else isinstance(value, compat.SYMBOLIC_NUMBERS)


class Composites(dict[OpOverload, Callable[..., Any]]):
    """Functions for composite operations, which torch passes to the mode as a whole in inference mode. An operation
    without an entry is decomposed as in eager.
    """

    def __contains__(self, op: object) -> bool:
        return super().__contains__(op) or compat.is_composite(op)

    def __missing__(self, op: OpOverload) -> Callable[..., Any]:
        run = self[op] = _decomposed(op)
        return run


def _sum_of_sparse(one: Any, other: Any, **kwargs: Any) -> Any:
    """Adds sparse tensors, such as gradients of a table that is read twice: the result has the entries of both.

    Torch's C++ would read the number of entries, which may be a symbol.
    """
    if kwargs or not all(isinstance(t, torch.Tensor) and t.layout is torch.sparse_coo for t in (one, other)):
        return NotImplemented
    indices = torch.cat([one._indices(), other._indices()], 1)
    return aten._sparse_coo_tensor_unsafe(indices, torch.cat([one._values(), other._values()]), list(one.shape))


COMPOSITES = Composites(
    {op: _decomposed(op, whole=True) for op in operator.attrgetter(*_PASSED_WHOLE.split())(aten)}
    | {aten.add.Tensor: _sum_of_sparse}
)
"""Composite operations by operator. Each function decomposes its operation as eager does. Torch's Python rules for some
of the operations return copies where eager returns an argument, or compute in another order. Only torch's rules accept
symbolic sizes and numbers: for these the functions return NotImplemented.
"""

EQUIVALENT: dict[OpOverload, OpOverload] = {}
"""Operators equivalent to an ATen operator with the same arguments, to which the tables apply."""


def _check_equal_shapes(source: torch.Tensor, window: torch.Tensor) -> None:
    """Raises a RuntimeError in eager's words unless the shapes are equal."""
    if source.shape != window.shape:
        text = "expected src to have a size equal to the slice of self. src size = {}, slice size = {}"
        raise RuntimeError(text.format(list(source.shape), list(window.shape)))


_PUTS = (aten.index_put.default, aten.index_put_.default)

_PUT = "Index put requires the source and destination dtypes match, got {} for the destination and {} for the source."
_ADDED = "index_add_(): self ({}) and source ({}) must have the same scalar type"
_COPIED = "index_copy_(): self and source expected to have the same dtype, but got (self) {} and (source) {}"

_ONE_DTYPE: dict[OpOverload, tuple[int, str]] = {
    **dict.fromkeys(_PUTS, (2, _PUT)),
    **dict.fromkeys((aten.index_add.default, aten.index_add_.default), (3, _ADDED)),
    **dict.fromkeys((aten.index_copy.default, aten.index_copy_.default), (3, _COPIED)),
}
"""Operations whose source must have the dtype of the first argument -> (position of the source, eager's message)."""


def _check_source(op: OpOverload, args: Sequence[Any]) -> None:
    """Raises a RuntimeError in eager's words for a wrong source; torch accepts any source without data."""
    position, text = _ONE_DTYPE[op]
    written, source = args[0], args[position]
    if op in _PUTS:
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
            return  # the number of elements that masks select is unknown
        _check_broadcast(source, aten.index.Tensor(written, args[1]))
    if written.dtype != source.dtype:
        raise RuntimeError(text.format(_name_of(written.dtype), _name_of(source.dtype)))


def _name_of(dtype: torch.dtype) -> str:
    return torch.empty(0, dtype=dtype).type().removeprefix("torch.").removesuffix("Tensor")


def _check_broadcast(source: torch.Tensor, window: torch.Tensor) -> None:
    """Raises a RuntimeError in eager's words unless `source` can be broadcast to the written elements."""
    sizes, wanted = [*source.shape], [*window.shape]
    missing = len(sizes) > len(wanted)
    pairs = zip(reversed(sizes), reversed(wanted))
    if missing or any(compat.is_sure(size != 1) and compat.is_sure(size != target) for size, target in pairs):
        text = "shape mismatch: value tensor of shape {} cannot be broadcast to indexing result of shape {}"
        raise RuntimeError(text.format([*map(int, sizes)], [*map(int, wanted)]))


def _check_index(tensor: torch.Tensor, dim: int, index: int) -> None:
    """Raises an IndexError in eager's words for an index out of range, which torch 2.11 does not check."""
    dim += tensor.dim() if dim < 0 else 0
    if 0 <= dim < tensor.dim():
        size = tensor.shape[dim]
        if compat.is_sure(index >= size) or compat.is_sure(index < -size):
            sizes = list(tensor.shape)
            raise IndexError(f"select(): index {index} out of range for tensor of size {sizes} at dimension {dim}")


def _check_dimension(tensor: torch.Tensor, dim: int = -1) -> None:
    """Raises an IndexError in eager's words for a dimension out of range."""
    count = max(tensor.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")


def _dtype_of_statistics(args: Sequence[Any]) -> torch.dtype:
    """Returns the dtype of the batch statistics that a batch norm returns on a CPU: that of its parameters."""
    parameters = [arg for arg in args[1:5] if isinstance(arg, torch.Tensor)]
    dtype: torch.dtype = (parameters or args)[0].dtype
    return dtype


# Operations, also in place, that are several kernels in eager, or copy their arguments first.
_BY_COPIES = ("ldexp", "masked_fill")


@functools.cache
def _is_iterated(op: OpOverload) -> bool:
    """Returns whether eager computes a new tensor elementwise in one kernel."""
    by_elements = torch.Tag.pointwise in op.tags and not op._schema.is_mutable
    return by_elements and op.overloadpacket.__name__ not in _BY_COPIES


@functools.cache
def _reads_and_writes_in_one_kernel(op: OpOverload) -> bool:
    """Returns whether eager writes elementwise, in one kernel, while reading the other arguments."""
    name = op.overloadpacket.__name__
    packet = getattr(aten, name.removesuffix("_"), op.overloadpacket)
    by_elements = any(torch.Tag.pointwise in getattr(packet, each).tags for each in packet.overloads())
    return (by_elements or op is aten.copy_.default) and name.removesuffix("_") not in _BY_COPIES


def _unversioned_view(result: Any) -> Any:
    """Returns the result of an operation outside of inference mode; a view of an inference tensor has no version, and
    so refuses writes.
    """
    if not isinstance(result, torch.Tensor) or not result.is_inference():
        return result
    with torch.inference_mode():
        return result.detach()


def _check_no_overlap(op: OpOverload, args: Sequence[Any]) -> None:
    """Raises a RuntimeError in eager's words if a written tensor and a read tensor overlap in part."""
    if not op._schema.is_mutable or not _reads_and_writes_in_one_kernel(op):
        return
    written, *others = args
    if any(isinstance(other, torch.Tensor) and _overlap(written, other) for other in others):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single"
            " memory location. Please clone() the tensor before performing the operation."
        )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors certainly overlap, except if they are the same elements in the same order."""
    if any(tensor.layout is not torch.strided or _has_symbols(tensor) for tensor in (one, other)):
        return False
    is_disjoint = not compat.share_memory(one, other) or not (one.numel() and other.numel())
    if one is other or is_disjoint or not all(is_dense(tensor.shape, tensor.stride()) for tensor in (one, other)):
        return False
    (begin, end), (first, last) = (
        (t.storage_offset() * t.itemsize, (t.storage_offset() + t.numel()) * t.itemsize) for t in (one, other)
    )
    if (begin, end) == (first, last):
        return one.stride() != other.stride()
    return begin < last and first < end


def _as_copied(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with a copy's layout if elements of `tensor` overlap, else `tensor`."""
    return torch.empty_like(tensor) if _repeats(tensor) else tensor


def _repeats(tensor: torch.Tensor) -> bool:
    return any(compat.is_sure(s == 0) and compat.is_sure(n > 1) for n, s in zip(tensor.shape, tensor.stride()))


@contextlib.contextmanager
def real_tensors_in_calls(mode: compat.FakeTensorMode) -> Iterator[None]:
    """Lets Python code read real tensors in calls inside the block, such as parameters: the mode converts them."""
    mode.allow_non_fake_inputs = True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = False


class FakeTensorMode(compat.StandaloneFakeTensorMode):
    """Operations on tensors without data; results have sizes, strides and dtypes as in eager.

    `draws`: whether some operation may have drawn random numbers. The caller resets it.
    """

    draws = False

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation."""
        result = self._fake_result(func, types, args, kwargs or {})
        if func is aten.detach.default or func._schema.is_mutable or torch.is_inference_mode_enabled():
            return result
        if type(result) in (list, tuple):  # named results contain no views
            return type(result)(map(_unversioned_view, result))
        return _unversioned_view(result)

    def _fake_result(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        op = EQUIVALENT.get(func, func)
        self.draws |= op.namespace not in ("aten", "prim", "prims")  # the effects of custom operators are unknown
        if func in COMPOSITES:
            with self:
                parts = COMPOSITES[func](*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        self.draws |= torch.Tag.nondeterministic_seeded in op.tags
        self._check(op, args, kwargs)
        return self._corrected(op, self._run(func, op, types, args, kwargs), args)

    def _check(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        """Raises the errors of eager that torch's fake mode does not raise before an operation."""
        if op in SIZED_BY_DATA:
            raise compat.DynamicOutputShape(op)
        if is_found_wrong(op):
            raise NotImplementedError(f"{op.name()} has returned something else than it promised (MD524)")
        if op is aten.select.int:
            _check_index(*args)
        if op in DIMENSIONS:
            _check_dimension(*args[:2])
        _check_no_overlap(op, args)
        if op in WINDOWS:
            with self:
                _check_equal_shapes(args[1], WINDOWS[op](args[0], *args[2:], **kwargs))

    def _run(self, func: OpOverload, op: OpOverload, types: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation by a meta function of minidynamo, or by torch's fake mode."""
        if op in META_FUNCTIONS and _has_symbols(args):
            with self:
                result = META_FUNCTIONS[op](op, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if func is aten.constant_pad_nd.default:
            # With a varying fill value, torch would specialize the sizes, which do not depend on the value.
            args, kwargs = args[:2], {}
        result = super().dispatch(func, types, args, kwargs)
        if func.name().startswith("aten::_foreach_") and func._schema.is_mutable:
            compat.increment_version(args[0])  # torch's kernels count below autograd, which fake tensors do not reach
        return result

    def _corrected(self, op: OpOverload, result: Any, args: Any) -> Any:
        """Returns a result with eager's dtypes and strides; raises eager's errors about the written elements."""
        if op in _ONE_DTYPE:
            with self:
                _check_source(op, args)
        if _has_dtype_of_first(op, args):
            with self:
                result = torch.empty_like(result, dtype=args[0].dtype)
        if op is aten.ldexp.Tensor and not compat.is_composite(op):
            with self:
                result = torch.empty_like(result, dtype=_dtype_of_scaled(*args))
        if op in LAYOUT_OF_FIRST:
            with self:
                result = _as_copied(result)
        if op in _BATCH_NORMS and args[0].is_cpu:
            with self:
                statistics = [torch.empty_like(each, dtype=_dtype_of_statistics(args)) for each in result[1:3]]
            result = (result[0], *statistics, *result[3:])
        rule, copies = _rule_of(op, args), COPIES.get(op, {})
        if copies:
            with self:
                result = tuple(torch.empty_like(args[copies[i]]) if i in copies else r for i, r in enumerate(result))
        if rule is not None:
            result = self._lay_out_each(result, lambda part: self._laid_out(rule, part, args))
        return result

    def _lay_out_each(self, result: Any, lay_out: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Lays out a result; of several results, those with the first result's shape."""
        if isinstance(result, torch.Tensor):
            return lay_out(result)
        if result[0] is None:  # a gradient that was not requested
            return result
        first = result[0].shape
        # Sizes are only compared for equal ranks: otherwise the batch size would be guarded against the number of
        # channels.
        has_first_shape = (part is not None and part.dim() == len(first) and part.shape == first for part in result)
        return tuple(lay_out(part) if same else part for part, same in zip(result, has_first_shape))

    def _laid_out(self, rule: Rule, result: torch.Tensor, args: Any) -> torch.Tensor:
        if result.dim() < 2:
            return result
        with self:
            return rule(result, args)
