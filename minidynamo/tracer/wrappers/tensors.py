"""Owns the trackers of external tensors: inputs of the graph, or opaque values.

Placeholders and guards of inputs are not here (`graph/inputs.py`)."""

from __future__ import annotations

import torch

from minidynamo.compat import has_names, is_functorch_wrapped, knows_history
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import VariableTracker

subclass_wrapper(torch.Tensor)(opaque)


@wrapper(torch.Tensor, torch.nn.Parameter)
def _tensor(graph: OutputGraph, value: torch.Tensor, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    if not is_plain_tensor(value):
        return opaque(graph, value, source)
    return graph.inputs.tensor(value, source)


def is_plain_tensor(value: torch.Tensor) -> bool:
    """Returns whether dtype, device, shape, strides and requires_grad describe the tensor, except its data."""
    if not knows_history(value):
        return False
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or is_functorch_wrapped(value):
        return False
    if value.is_inference() and not torch.is_inference_mode_enabled():  # autograd refuses to save it
        return False
    return not (value.is_conj() or value.is_neg() or has_names(value))
