"""Owns the user's lines on ATen nodes: which torch-level node, and so which line, a traced operation belongs to; which
checkpoint, whose values backward computes again; and which call of a backward that the user wrote.

Forward operations belong to the torch-level node that is being run; backward operations to the node whose gradient
function autograd is calling, and so do those of higher derivatives.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph import gradients
from minidynamo.autograd.graph.hooks import register
from minidynamo.graph.checkpoint import CHECKPOINTS
from minidynamo.graph.decomposed import PART_OF

USERS_BACKWARD = "users_backward"
"""What nodes note of the call of a backward that the user wrote, of an autograd.Function, in which they were made."""

KEPT = ("user_location", "checkpoint", USERS_BACKWARD, PART_OF)
"""What is noted, and holds for all that a node is replaced by."""


class LocationRecorder:
    """Marks the nodes of a growing `graph` with the location of the torch-level node, `current`, that makes them.

    With `again`, gradients are differentiated as well: gradient functions that others bring into being are followed.
    """

    def __init__(self, graph: fx.Graph, again: bool = False) -> None:
        self.graph = graph
        self.again = again
        self.marked = self.newest()
        self.current: fx.Node | None = None
        self.marks: dict[str, Any] = {}
        self.known: dict[torch.autograd.graph.Node, fx.Node] = {}
        self.chosen: list[torch.autograd.graph.Node] = []

    def newest(self) -> fx.Node | None:
        return next(iter(reversed(self.graph.nodes)), None)

    def enter(self, current: fx.Node | None, **marks: Any) -> None:
        """Nodes made from now on belong to `current`, and get `marks`; those made since the last call to the one
        before."""
        node = newest = self.newest()
        while self.marks and node is not None and node is not self.marked and node.op != "root":
            node.meta |= {key: value for key, value in self.marks.items() if key not in node.meta}
            node = node.prev
        self.marked = newest
        self.current = current
        self.marks = {} if current is None else _marks(current) | marks

    def follow_backward(self, result: Any, maker: fx.Node, **around: Any) -> None:
        """When autograd calls a gradient function that `result` brought into being, enter `maker`, with the marks of
        what is `around` it."""
        values = result if isinstance(result, (tuple, list)) else (result,)
        pending = [v.grad_fn for v in values if isinstance(v, torch.Tensor) and v.grad_fn is not None]
        while pending:
            function = pending.pop()
            if function in self.known:
                continue
            self.known[function] = maker
            marks = dict(around)
            if isinstance(function, torch.autograd.function.BackwardCFunction):
                marks[USERS_BACKWARD] = f"{maker.name}, {len(self.known)}"
                register(function.register_hook, functools.partial(self._called, maker, **around))
            register(function.register_prehook, functools.partial(self._called, maker, **marks))
            if self.again:
                register(function.register_hook, functools.partial(self._returned, maker, **around))
            elif compat.name_of(function) in gradients.FORMULAS:
                self.chosen.append(function)
                register(function.register_hook, functools.partial(self._corrected, len(self.chosen) - 1))
            pending += [after for after, _ in function.next_functions if after is not None]

    def _called(self, maker: fx.Node, *_: Any, **marks: Any) -> None:
        self.enter(maker, **marks)

    def _returned(self, maker: fx.Node, made: Any, _: Any, **around: Any) -> None:
        self.follow_backward(made, maker, **around)

    def _corrected(self, index: int, made: Any, given: Any) -> Any:
        return gradients.corrected(self.chosen[index], made, given)

    def end(self) -> None:
        """Nothing is followed any more. Gradient functions hold their hooks, which hold this recorder."""
        self.enter(None)
        self.known.clear()
        self.chosen.clear()


def _marks(maker: fx.Node) -> dict[str, Any]:
    """What is noted of operations that belong to the torch-level node `maker`."""
    location = maker.meta.get("user_location")
    marks = {} if location is None else {"user_location": location}
    return {**marks, "checkpoint": maker.name} if maker.target in CHECKPOINTS else marks


class LocatingInterpreter(fx.Interpreter):
    """Runs a torch-level graph and tells `recorder` whose turn it is; `around` has marks for all that it does."""

    extra_traceback = False

    def __init__(self, gm: fx.GraphModule, recorder: LocationRecorder, **around: Any) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.recorder = recorder
        self.around = around

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.enter(n, **self.around)
        result = super().run_node(n)
        self.recorder.follow_backward(result, n, **self.around)
        return result
