"""Owns the allowance of tests of peak memory for torch 2.11, where autograd itself holds the gradients that a backward
receives until the backward ends. Later releases pass the gradients in a list, which compiled backwards empty.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo.graph.pytree import leaves

HAS_BOXED_GRADIENTS = hasattr(torch.autograd.Function, "boxed_grads_call")


def held_bytes(results: Any) -> int:
    """Returns the bytes that backward may need on top of eager's peak, given the results of a graph, or other tensors
    at least as large: none where autograd passes the gradients in a list.
    """
    tensors = [value for value in leaves(results) if isinstance(value, torch.Tensor)]
    return 0 if HAS_BOXED_GRADIENTS else sum(tensor.nbytes for tensor in tensors)
