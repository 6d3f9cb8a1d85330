"""Owns the results that depend on the default dtype and device, in traces of programs that change the defaults.

The changes are no nodes of the joint graph (`graph/torch_settings.py` has them), so the nodes here state the defaults.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.graph_builder import fake
from minidynamo.autograd.graph.provenance import COPIED_META
from minidynamo.compat import FakeTensorMode, OpOverload

aten = torch.ops.aten


def write_defaults(graph: fx.Graph, mode: FakeTensorMode) -> None:
    """Writes the defaults into each call whose result has another dtype, or another device, with the present
    defaults."""
    for node in [*graph.nodes]:
        tensor = node.meta.get("val")
        if isinstance(node.target, OpOverload) and isinstance(tensor, torch.Tensor):
            if not node.all_input_nodes:
                _write_arguments(node, node.target, tensor)
            elif not compat.schema_of(node.target).is_mutable:
                _cast_integers(node, node.target, tensor.dtype, mode)


def _write_arguments(node: fx.Node, creation: OpOverload, tensor: torch.Tensor) -> None:
    parameters = {argument.name for argument in compat.schema_of(creation).arguments}
    defaults: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    if parameters >= defaults.keys():
        node.kwargs = {**defaults, **{name: value for name, value in node.kwargs.items() if value is not None}}


def _cast_integers(node: fx.Node, operation: OpOverload, dtype: torch.dtype, mode: FakeTensorMode) -> None:
    """Casts the integers of an operation that computes with the default dtype, as in `integers / 2`."""
    tensors = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    if not _is_inexact(dtype) or any(_is_inexact(each.meta["val"].dtype) for each in tensors):
        return
    with mode, torch.no_grad():
        if operation(*fake(node.args), **fake(node.kwargs)).dtype is dtype:
            return
        for each in tensors:
            with node.graph.inserting_before(node):
                cast: Any = node.graph.call_function(aten._to_copy.default, (each,), {"dtype": dtype})
            cast.meta.update({key: node.meta[key] for key in COPIED_META if key in node.meta})
            cast.meta["val"] = aten._to_copy.default(each.meta["val"], dtype=dtype)
            node.replace_input_with(each, cast)


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
