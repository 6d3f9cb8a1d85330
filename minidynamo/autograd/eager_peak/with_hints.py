"""Owns the copy of a graph whose sizes are those of the call that it was traced for, where they vary in the graph.

Whoever plans it decides nothing on sizes of other calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.fake import mode as fake_mode


def with_hints(gm: fx.GraphModule) -> fx.GraphModule | None:
    """`gm`, with the same inputs and names of nodes, but numbers instead of symbols. None where that cannot be told:
    where sizes hang on data, say."""
    try:
        with fake_mode.FakeTensorMode(), torch.no_grad():
            return _copied(gm)
    except Exception:  # of torch's without data
        return None


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}  # nodes of the copy, and numbers
    values: dict[fx.Node, Any] = {}
    for node in gm.graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            graph.output(args[0])
            continue
        if node.op == "placeholder":
            values[node] = without_data(node.meta["val"])
        else:
            given = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*given[0], **given[1])
        if node.op == "call_function" and isinstance(values[node], int | float | bool):
            env[node] = values[node]
            continue
        env[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        env[node].meta = {**node.meta, "val": values[node]}
    return compat.graph_module(torch.nn.Module(), graph)


def without_data(value: Any) -> Any:
    """A number or a tensor like an input, with what varies as in the call that it was traced for."""
    if not isinstance(value, torch.Tensor):
        return _hint(value)
    if value.layout is not torch.strided:
        raise NotImplementedError("its memory is not one storage")
    shape, stride = ([_hint(size) for size in sizes] for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)


def _hint(value: Any) -> Any:
    return value.node.hint if is_symbolic(value) else value
