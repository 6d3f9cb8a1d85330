"""Owns the cuts of a graph in distributed training, where a bucket of gradients is full.

`DistributedDataParallel` sends the gradients of parameters in buckets, the last layers first. A compiled graph is a
single node of autograd's graph, which returns all gradients together. A graph cut at the borders of the buckets has a
node per bucket: the gradients of a bucket are sent while backward computes the next bucket. The cuts themselves are
those of `autograd/segments.py`.
"""

from __future__ import annotations

import torch
from torch import fx

from minidynamo import compat
from minidynamo.graph.collectives import bucket_border


def add_borders(gm: fx.GraphModule) -> bool:
    """Adds a `bucket_border` before each operation that fills a bucket, if a `DistributedDataParallel` calls the
    graph. Returns whether there is any.
    """
    limits = compat.bucket_limits() if torch.is_grad_enabled() else None
    if limits is None:
        return False
    limit, later_limit = limits
    missing = {node: size for node in gm.graph.nodes if (size := _gradient_bytes(node))}
    filled, found = 0, False
    for node in reversed(gm.graph.nodes):  # as backward does
        if node.op not in ("call_function", "call_method"):
            continue
        filled += sum(missing.pop(parameter, 0) for parameter in node.all_input_nodes)
        if filled >= limit and missing:
            with gm.graph.inserting_before(node):
                gm.graph.call_function(bucket_border)
            filled, limit, found = 0, later_limit, True
    return found


def remove_borders(gm: fx.GraphModule) -> None:
    """Removes the borders that `add_borders` added."""
    for node in gm.graph.find_nodes(op="call_function", target=bucket_border):
        gm.graph.erase_node(node)


def _gradient_bytes(node: fx.Node) -> int:
    """Returns the bytes of a parameter's gradient; 0 for other nodes."""
    value = node.meta.get("example_value") if node.op == "placeholder" else None
    return value.nbytes if isinstance(value, torch.nn.Parameter) and value.requires_grad else 0
