"""Owns the user's lines on ATen nodes: which line of the user's program a traced operation belongs to.

Forward operations belong to the torch-level node that is being run; backward operations to the node whose gradient
function autograd is calling.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from minidynamo.errors import UserLocation


class LocationRecorder:
    """Marks the nodes of a growing `graph` with the location that was current when they were made."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.marked = self.newest()
        self.current: UserLocation | None = None
        self.known: set[torch.autograd.graph.Node] = set()

    def newest(self) -> fx.Node | None:
        return next(iter(reversed(self.graph.nodes)), None)

    def enter(self, location: UserLocation | None) -> None:
        """Nodes made from now on belong to `location`; those made since the last call to the one before."""
        newest = self.newest()
        node = newest
        while node is not None and node is not self.marked and node.op != "root":
            if self.current is not None:
                node.meta.setdefault("user_location", self.current)
            node = node.prev
        self.marked = newest
        self.current = location

    def follow_backward(self, result: Any, location: UserLocation | None) -> None:
        """When autograd calls a gradient function that `result` brought into being, enter `location`."""
        if location is None:
            return
        values = result if isinstance(result, (tuple, list)) else (result,)
        pending = [v.grad_fn for v in values if isinstance(v, torch.Tensor) and v.grad_fn is not None]
        while pending:
            function = pending.pop()
            if function in self.known:
                continue
            self.known.add(function)
            function.register_prehook(functools.partial(self._called, location))
            pending += [after for after, _ in function.next_functions if after is not None]

    def _called(self, location: UserLocation, gradients: Any) -> None:
        self.enter(location)


class LocatingInterpreter(fx.Interpreter):
    """Runs a torch-level graph and tells `recorder` whose turn it is."""

    extra_traceback = False

    def __init__(self, gm: fx.GraphModule, recorder: LocationRecorder) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        location = n.meta.get("user_location")
        self.recorder.enter(location)
        result = super().run_node(n)
        self.recorder.follow_backward(result, location)
        return result
