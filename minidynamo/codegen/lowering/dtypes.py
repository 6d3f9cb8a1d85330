"""Owns what torch makes of several dtypes: where fake tensors may be wrong about the result, and where it refuses them.

Kernels read memory by the dtype that fake tensors foretell, so they do not read where that is uncertain.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

import torch
from torch import fx

from minidynamo.codegen.lowering.registry import base_name
from minidynamo.compat import OpOverload
from minidynamo.fake.gradient_dtypes import are_of_autograd
from minidynamo.graph.checked_results import is_trusted

NORMALIZATIONS = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_batch_norm_no_update",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
    }
)
"""Operations whose first result has the dtype of the first argument; that of the others may be another one."""

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
"""Operations for gradients, which torch may refuse for other dtypes than autograd calls them with."""


def is_for_torch(node: fx.Node) -> bool:
    """Whether it is for torch to say what becomes of the dtypes that a call is given."""
    if not isinstance(node.target, OpOverload) or base_name(node.target) not in GRADIENTS:
        return False
    given = [arg.meta.get("val") if isinstance(arg, fx.Node) else arg for arg in node.args]
    return not are_of_autograd(base_name(node.target), given)


def is_uncertain(node: fx.Node, uncertain: Container[fx.Node]) -> bool:
    """Whether the dtype of a result of torch is uncertain: an operation takes several floating dtypes, as losses and
    normalizations do, or what it takes is `uncertain` itself and nothing settles the dtype of its result."""
    value = node.meta.get("val")
    if node.op != "call_function" or _is_settled(node, value) or _is_checked(node):
        return False
    if node.target is operator.getitem:
        call, place = node.args
        return call in uncertain and not (place == 0 and _is_like_the_first(call, uncertain))
    if any(source in uncertain for source in node.all_input_nodes):
        return True
    given = (source.meta.get("val") for source in node.all_input_nodes)
    return len({v.dtype for v in given if isinstance(v, torch.Tensor) and v.is_floating_point()}) > 1


def _is_settled(node: fx.Node, value: Any) -> bool:
    """Whether the result is no floating tensor, or the call says which dtype it has."""
    if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()):
        return True
    return any(isinstance(arg, torch.dtype) for arg in (*node.args, *node.kwargs.values()))


def _is_checked(node: fx.Node) -> bool:
    """Whether the host program compares the whole result with what its fake implementation promises."""
    return isinstance(node.target, OpOverload) and not is_trusted(node.target)


def _is_like_the_first(call: Any, uncertain: Container[fx.Node]) -> bool:
    is_known = isinstance(call.target, OpOverload) and base_name(call.target) in NORMALIZATIONS
    return is_known and call.args[0] not in uncertain
