"""Owns the stages of a backward in distributed training: the number of stages, and the gradients that each returns.

`DistributedDataParallel` sends the gradients of parameters in buckets, in the order in which they arrive. A compiled
graph is a single node of autograd's graph, which returns all gradients together. A backward in stages returns the
gradients of a bucket as soon as the bucket is full (`runtime/stage_nodes.py`). The graphs are the same with and without
stages: the rule below costs a node of autograd's graph per bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo.autograd.graph.signature import NodeGraph
from minidynamo.autograd.trace.grad_graph_queries import taking_order
from minidynamo.graph.unbacked_symints import hint_of


def in_stages(
    graph: NodeGraph, inputs: Sequence[Any], is_leaf: Mapping[int, bool], limits: Sequence[int] | None
) -> NodeGraph:
    """Returns the graph with stages, one per bucket of `limits` bytes; the last limit holds for all further buckets.

    Gradients are taken in eager's order. A stage ends where a bucket is full. As in `DistributedDataParallel`, only
    gradients of one dtype and device share a bucket. The last stage returns the gradients of inputs that
    are not leaves: no bucket waits for them.
    """
    if not limits:
        return graph
    leaves = [k for k, edge in enumerate(graph.edges) if is_leaf[edge.input]]
    others = [k for k, edge in enumerate(graph.edges) if not is_leaf[edge.input]]
    order = [leaves[i] for i in taking_order(len(leaves), more=bool(others))]
    stages: list[list[int]] = [[]]
    bytes_in_bucket: dict[object, int] = {}
    full_buckets: dict[object, int] = {}
    for edge in order:
        value = inputs[graph.edges[edge].input]
        bucket = value.dtype, value.device
        stages[-1].append(edge)
        bytes_in_bucket[bucket] = bytes_in_bucket.get(bucket, 0) + _bytes(value)
        if bytes_in_bucket[bucket] >= limits[min(full_buckets.get(bucket, 0), len(limits) - 1)]:
            bytes_in_bucket[bucket], full_buckets[bucket] = 0, full_buckets.get(bucket, 0) + 1
            stages.append([])
    stages[-1] += others
    stages = [stage for stage in stages if stage]
    if len(stages) < 2:
        return graph
    arranged = [_arranged(stage, is_last=stage is stages[-1], others=others) for stage in stages]
    return replace(graph, stages=tuple(arranged))


def _bytes(value: torch.Tensor) -> int:
    return hint_of(value.numel()) * value.element_size()


def _arranged(stage: list[int], *, is_last: bool, others: list[int]) -> tuple[int, ...]:
    """Returns the edges of a stage, arranged for autograd to take the leaves in the order of `stage`."""
    leaves = [edge for edge in stage if edge not in others]
    arranged = [0] * len(leaves)
    for edge, position in zip(leaves, taking_order(len(leaves), more=not is_last or bool(others))):
        arranged[position] = edge
    return (*arranged, *(others if is_last else ()))
