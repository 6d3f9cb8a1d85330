"""Owns dtype rules: where fake tensors may have the wrong dtype for operations on several dtypes, where torch raises,
and the conversion of run-time numbers to a dtype that may be too small.

Kernels read memory with the dtype of the fake tensor, so they do not read tensors of uncertain dtype. Eager raises an
error for a number that does not fit. A kernel cannot raise, so the host program checks the number before its first
step.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

import torch
from torch import fx

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Name
from minidynamo.codegen.ir.size import Size, known_at_least, product
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, all_fit, const
from minidynamo.codegen.lowering.registry import Value, base_name
from minidynamo.codegen.runtime.host_functions import must_fit
from minidynamo.compat import OpOverload
from minidynamo.fake.meta_functions import has_dtypes_of_autograd
from minidynamo.graph.checked_results import is_trusted

RESULTS_LIKE_THE_FIRST_ARGUMENT: dict[str, int] = {
    "native_layer_norm": 1,
    "native_group_norm": 1,
    "native_batch_norm": 1,
    "_batch_norm_no_update": 1,
    "_batch_norm_with_update": 1,
    "_batch_norm_with_update_functional": 1,
    "_native_batch_norm_legit": 1,
    "_native_batch_norm_legit_functional": 1,
    "_native_batch_norm_legit_no_training": 1,
    # Query, key and value have one dtype, and so have their gradients.
    "_scaled_dot_product_cudnn_attention": 1,
    "_scaled_dot_product_cudnn_attention_backward": 3,
    "_scaled_dot_product_efficient_attention": 1,
    "_scaled_dot_product_efficient_attention_backward": 3,
    "_scaled_dot_product_flash_attention": 1,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 1,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "_scaled_dot_product_fused_attention_overrideable": 1,
    "_scaled_dot_product_fused_attention_overrideable_backward": 3,
}
"""Operation -> the number of its first results that have the dtype of the first argument. The other results may have
another dtype."""

GRADIENTS = frozenset(
    {
        "gelu_backward",
        "hardtanh_backward",
        "leaky_relu_backward",
        "native_dropout_backward",
        "native_layer_norm_backward",
        "sigmoid_backward",
        "silu_backward",
        "tanh_backward",
        "threshold_backward",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
    }
)
"""Gradient operations that torch may refuse for dtypes that autograd never passes."""


def is_left_to_torch(node: fx.Node) -> bool:
    """Returns whether torch itself must decide the result of a call for the dtypes of its arguments."""
    if not isinstance(node.target, OpOverload) or base_name(node.target) not in GRADIENTS:
        return False
    arguments = [arg.meta.get("val") if isinstance(arg, fx.Node) else arg for arg in node.args]
    return not has_dtypes_of_autograd(base_name(node.target), arguments)


def is_uncertain(node: fx.Node, uncertain: Container[fx.Node]) -> bool:
    """Returns whether the dtype of a result of torch is uncertain.

    The dtype is uncertain if the operation takes several floating dtypes, as losses and normalizations do, or if an
    argument is `uncertain` and no rule decides the dtype of the result.
    """
    value = node.meta.get("val")
    if node.op != "call_function" or _has_certain_dtype(node, value) or _is_checked(node):
        return False
    if node.target is operator.getitem:
        call, item = node.args
        return call in uncertain and not _is_like_the_first(call, item, uncertain)
    if any(source in uncertain for source in node.all_input_nodes):
        return True
    arguments = (source.meta.get("val") for source in node.all_input_nodes)
    return len({v.dtype for v in arguments if isinstance(v, torch.Tensor) and v.is_floating_point()}) > 1


def _has_certain_dtype(node: fx.Node, value: Any) -> bool:
    """Returns whether the dtype of a result is certain: it is not a floating dtype, or it is an argument of the
    call."""
    if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()):
        return True
    return any(isinstance(arg, torch.dtype) for arg in (*node.args, *node.kwargs.values()))


def _is_checked(node: fx.Node) -> bool:
    """Returns whether the host program compares the whole result with the promise of the fake implementation."""
    return isinstance(node.target, OpOverload) and not is_trusted(node.target)


def _is_like_the_first(call: Any, item: Any, uncertain: Container[fx.Node]) -> bool:
    """Returns whether a result of a call has the dtype of the first argument, and this dtype is certain."""
    count = RESULTS_LIKE_THE_FIRST_ARGUMENT.get(base_name(call.target), 0) if isinstance(call.target, OpOverload) else 0
    return item < count and call.args[0] not in uncertain


def run_time_dtype(value: V | Number) -> torch.dtype | None:
    """Returns the dtype of a number that is known at run time only, else None."""
    return value.dtype if isinstance(value, V) else torch.int64 if isinstance(value, Size) else None


def may_not_fit(value: V | Number | Value, dtype: torch.dtype) -> bool:
    """Returns whether torch may refuse the conversion of a run-time number or of a tensor to `dtype`."""
    source_dtype = value.dtype if isinstance(value, Value) else run_time_dtype(value)
    return source_dtype is not None and not all_fit(source_dtype, dtype)


def converted(builder: Builder, value: V | Number, dtype: torch.dtype) -> V:
    """Converts `value` to `dtype`; the host program raises eager's error if it does not fit."""
    if may_not_fit(value, dtype):
        scalar = value.expr if isinstance(value, V) else None
        # For half types torch accepts more numbers when it fills a single element.
        if not known_at_least(product(builder.out.shape), 2) or (scalar and not isinstance(scalar, Scalar)):
            raise NotLowered
        builder.require(must_fit, Name(scalar.name) if isinstance(scalar, Scalar) else value, dtype)
    return const(value, dtype)
