"""Owns the random numbers that backward draws again: the draws of checkpoints, from a saved generator state.

Eager saves the state before each checkpoint; a graph saves the state only where it is smaller than the masks. The draws
of a checkpoint become functions that take a state and return the next state (`graph/rng_replay.py`). `partition.py`
then chooses the saved values of a checkpoint as for any other operation.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.graph.graph_builder import GraphBuilder
from minidynamo.autograd.graph.recomputation import is_random
from minidynamo.compat import OpOverload
from minidynamo.graph.pytree import as_sequence
from minidynamo.graph.rng_replay import STATE_BYTES, draw, random_state
from minidynamo.graph.unbacked_symints import hint_of


def draw_from_states(functional: FunctionalGraph) -> None:
    """Makes the draws of each checkpoint in a joint graph depend on a single state, where the state is smaller than the
    masks."""
    regions: dict[str, list[fx.Node]] = {}
    for node in functional.emitter.graph.nodes:
        if is_random(node) and "checkpoint" in node.meta and node in functional.forward_nodes:
            regions.setdefault(node.meta["checkpoint"], []).append(node)
    for nodes in regions.values():
        devices = [_device(node) for node in nodes]
        for device in dict.fromkeys(devices):
            draws = [node for node, own_device in zip(nodes, devices) if own_device == device]
            if None not in devices and sum(map(_elements, draws)) > STATE_BYTES[device.type]:  # type: ignore[union-attr]
                functional.forward_nodes |= _draw_in_chain(functional.emitter, device, draws)  # type: ignore[arg-type]


def _device(node: fx.Node) -> torch.device | None:
    """Returns the device whose generator `node` draws from; None if `node` cannot draw from a state."""
    is_known = isinstance(node.target, OpOverload) and node.target.namespace in ("aten", "minidynamo")
    has_generator = any(isinstance(value, torch.Generator) for value in (*node.args, *node.kwargs.values()))
    devices = {value.device for value in _results(node) if isinstance(value, torch.Tensor)}
    if len(devices) > 1:  # a returned seed is on the CPU
        devices.discard(torch.device("cpu"))
    device = devices.pop()
    return device if is_known and not has_generator and not devices and device.type in STATE_BYTES else None


def _elements(node: fx.Node) -> int:
    """Returns how many numbers `node` draws; each number takes at least a byte."""
    # Cost only: whether keeping the state of the generator is cheaper than keeping the draws.
    return max(hint_of(value.numel()) for value in _results(node) if isinstance(value, torch.Tensor))


def _results(node: fx.Node) -> tuple[Any, ...]:
    return tuple(as_sequence(node.meta["val"]))


def _draw_in_chain(emitter: GraphBuilder, device: torch.device, nodes: list[fx.Node]) -> set[fx.Node]:
    """Rewrites `nodes`, in order, to draw from the state that the previous node returns. Returns the new nodes."""
    new_nodes: list[fx.Node] = []
    for node in nodes:
        with emitter.replacing(node):
            with emitter.graph.inserting_before(node):
                if not new_nodes:
                    new_nodes.append(emitter.emit_known(random_state, (device,), {}, _state(emitter, device)))
                results = (*_results(node), _state(emitter, device))
                args = (str(node.target), device, new_nodes[-1], *node.args)
                call = emitter.emit_known(draw, args, node.kwargs, results)
            with emitter.graph.inserting_after(node):
                next_state = emitter.element(call, len(results) - 1)
        if isinstance(node.meta["val"], torch.Tensor):
            node.target, node.args, node.kwargs = operator.getitem, (call, 0), {}
        else:
            node.replace_all_uses_with(call)
            emitter.graph.erase_node(node)
        new_nodes += [call, next_state]
    return set(new_nodes)


def _state(emitter: GraphBuilder, device: torch.device) -> torch.Tensor:
    with emitter.mode:
        return torch.empty(STATE_BYTES[device.type], dtype=torch.uint8, device="cpu")
