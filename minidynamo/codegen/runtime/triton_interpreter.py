# mypy: allow-untyped-defs, allow-untyped-calls
"""Owns the functions that printed Triton kernels call under Triton's interpreter on a CPU, where the interpreter lacks
them.

The interpreter cannot call the device's math library, and folds rows element by element. Here torch and NumPy do both,
on the arrays inside the interpreter's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder


def run(kernel: Callable[..., None], tensors: Sequence[torch.Tensor], constants: Mapping[str, int]) -> None:
    """Launches an interpreted kernel. Floating-point errors are silent, as on a device; a bad index raises
    IndexError."""
    try:
        with np.errstate(all="ignore"):
            kernel(*tensors, **constants)
    except InterpreterError as error:
        cause = error.__cause__
        while isinstance(cause, InterpreterError):
            cause = cause.__cause__
        if isinstance(cause, IndexError):
            raise cause from None
        raise


def _binary_op(lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., Any]) -> TensorHandle:
    """Replaces the interpreter's method, which gives comparisons the type of their operands."""
    result = InterpreterBuilder.binary_op(interpreter_builder, lhs, rhs, op)
    return TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result


interpreter_builder.binary_op = _binary_op


def tensor_like(data: np.ndarray[Any, Any], dtype: Any) -> Any:
    """Returns an interpreter tensor around an array."""
    return tl.core.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)) if data.shape else dtype)


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        data = function(*(torch.from_numpy(np.ascontiguousarray(x.handle.data)) for x in operands)).numpy()
        shape = np.broadcast_shapes(*(x.handle.data.shape for x in operands))
        return tensor_like(data.reshape(shape), operands[0].dtype.scalar)

    return call


def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Computes x * y + z in float64. A device rounds once."""
    return (x.double() * y.double() + z.double()).to(x.dtype)


def remainder_of_c(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Computes C's fmod. Torch's vectors return NaN if the quotient overflows."""
    return torch.from_numpy(np.asarray(np.fmod(x.numpy(), y.numpy())))


class Libdevice:
    """The functions of the device's math library that kernels use."""

    fmod = staticmethod(_elementwise(remainder_of_c))
    nearbyint = staticmethod(_elementwise(torch.round))
    fma = staticmethod(_elementwise(multiply_add))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _elementwise(getattr(torch, name))


def _row(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        return tensor_like(function(x.handle.data, axis=1, keepdims=True).astype(x.handle.data.dtype), x.dtype.scalar)

    return call


row_sum = _row(np.sum)
row_prod = _row(np.prod)
row_max = _row(np.max)
row_min = _row(np.min)


def _row_place(best: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, position: Any) -> Any:
        values, positions = x.handle.data, position.handle.data
        top = best(values, axis=1, keepdims=True)
        first = np.where(
            (values == top) | ((values != values) & (top != top)), positions, np.iinfo(positions.dtype).max
        )
        return tensor_like(first.min(axis=1, keepdims=True), position.dtype.scalar)

    return call


row_argmax = _row_place(np.max)
row_argmin = _row_place(np.min)


def check_index(index: Any, size: Any, mask: Any) -> Any:
    """Returns the index; raises IndexError if an index under the mask is out of range."""
    values = index.handle.data
    bound = size.handle.data if hasattr(size, "handle") else size
    if (((values < 0) | (values >= bound)) & mask.handle.data).any():
        raise IndexError("index out of range in self")
    return index


def to_bfloat16(x: Any) -> Any:
    """Rounds to nearest even, as on a device; the interpreter truncates. bfloat16 is stored as 16 bits."""
    data = torch.from_numpy(np.ascontiguousarray(x.handle.data)).to(torch.bfloat16)
    return tensor_like(data.view(torch.uint16).numpy(), tl.bfloat16)


def from_bfloat16(x: Any) -> Any:
    """Converts bfloat16 to float32."""
    data = torch.from_numpy(np.ascontiguousarray(x.handle.data)).view(torch.bfloat16)
    return tensor_like(data.float().numpy(), tl.float32)


REPLACED = (
    *("row_sum", "row_prod", "row_max", "row_min", "row_argmax", "row_argmin"),
    *("check_index", "to_bfloat16", "from_bfloat16"),
)
"""The functions of `triton_prelude` that this file replaces."""
