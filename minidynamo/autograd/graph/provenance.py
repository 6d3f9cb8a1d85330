"""Owns the provenance of ATen nodes, as three marks: the torch-level node, with its user location; the checkpoint whose
values backward computes again; and the call of a backward that the user wrote.

A forward operation belongs to the torch-level node that is running. A backward operation, of any order, belongs to the
node whose gradient function autograd is calling. Some gradients are computed differently by torch for tensors without
data; for these the formula for tensors with data is traced.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.hooks import register
from minidynamo.errors import UserLocation, located
from minidynamo.graph.higher_order import CHECKPOINTS
from minidynamo.graph.marks import PART_OF, USERS_BACKWARD
from minidynamo.graph.pytree import as_sequence

SHARED_AMONG_EQUALS = frozenset(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"))
"""Gradient functions of an operation that returns one of all elements. For tensors without data, torch traces another
formula."""


def corrected_gradients(function: Any, returned: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns corrections of the gradients that a gradient function `returned` for `tangents`; None if the gradients
    are correct.

    The elements that are equal to the returned one share the gradient; all others get zero.
    """
    if compat.name_of(function) not in SHARED_AMONG_EQUALS or returned[0] is None or tangents[0] is None:
        return None
    values, chosen = function._saved_self, function._saved_result
    is_chosen = (values == chosen) | (values.isnan() & chosen.isnan())
    zeros = torch.zeros(values.shape, dtype=values.dtype, device=values.device)
    return (zeros.masked_fill(is_chosen, tangents[0] / is_chosen.sum()), *returned[1:])


COPIED_META = ("user_location", "checkpoint", USERS_BACKWARD, PART_OF)
"""Meta keys copied from a node to a replacement."""


def line_of_node(node: Any) -> UserLocation | None:
    """Returns the user's line of a node, if known."""
    return node.meta.get("user_location") if isinstance(node, fx.Node) else None


class LocationRecorder:
    """Marks the nodes of a growing `graph` with the location of their *origin*: the torch-level node that is running,
    or whose gradient function is running.

    With `higher_order`, gradients are differentiated as well: gradient functions created by backward are followed.
    """

    def __init__(self, graph: fx.Graph, higher_order: bool = False) -> None:
        self.graph = graph
        self.higher_order = higher_order
        #: The last marked node.
        self.marked = self.newest()
        #: The torch-level node that is running.
        self.current: fx.Node | None = None
        #: Marks of the nodes that follow.
        self.marks: dict[str, Any] = {}
        #: Origin of each gradient function.
        self.origins: dict[torch.autograd.graph.Node, fx.Node] = {}
        #: Gradient functions whose gradients are corrected (`corrected_gradients`).
        self.corrected_functions: list[torch.autograd.graph.Node] = []

    @contextlib.contextmanager
    def locating(self) -> Iterator[None]:
        """Locates errors that the block raises at the line of the running node."""
        try:
            yield
        except Exception as error:
            with located(line_of_node(self.current or self._origin_of_overwritten(error))):
                raise

    def _origin_of_overwritten(self, error: Exception) -> fx.Node | None:
        """Returns the node whose saved tensor was overwritten, if reading the tensor raises the same error."""
        for function, origin in self.origins.items():
            try:
                compat.saved_by(function)
            except RuntimeError as other:
                if str(other) == str(error):
                    return origin
        return None

    def newest(self) -> fx.Node | None:
        return next(iter(reversed(self.graph.nodes)), None)

    def enter(self, current: fx.Node | None, **marks: Any) -> None:
        """Assigns the nodes that follow to `current`, with `marks`. Marks the nodes since the last call."""
        node = newest = self.newest()
        while self.marks and node is not None and node is not self.marked and node.op != "root":
            node.meta |= {key: value for key, value in self.marks.items() if key not in node.meta}
            node = node.prev
        self.marked = newest
        self.current = current
        self.marks = {} if current is None else _marks(current) | marks

    def follow_backward(self, result: Any, origin: fx.Node, **marks: Any) -> None:
        """Enters `origin`, with `marks`, whenever autograd calls a gradient function that `result` created."""
        pending = [v.grad_fn for v in as_sequence(result) if isinstance(v, torch.Tensor) and v.grad_fn is not None]
        while pending:
            function = pending.pop()
            if function in self.origins:
                continue
            self.origins[function] = origin
            prehook_marks = dict(marks)
            if isinstance(function, torch.autograd.function.BackwardCFunction):
                prehook_marks[USERS_BACKWARD] = f"{origin.name}, {len(self.origins)}"
                register(function.register_hook, functools.partial(self._called, origin, **marks))
            register(function.register_prehook, functools.partial(self._called, origin, **prehook_marks))
            if self.higher_order:
                register(function.register_hook, functools.partial(self._returned, origin, **marks))
            elif compat.name_of(function) in SHARED_AMONG_EQUALS:
                self.corrected_functions.append(function)
                register(function.register_hook, functools.partial(self._correct, len(self.corrected_functions) - 1))
            pending += [after for after, _ in function.next_functions if after is not None]

    def _called(self, origin: fx.Node, *_: Any, **marks: Any) -> None:
        self.enter(origin, **marks)

    def _returned(self, origin: fx.Node, returned: Any, _: Any, **marks: Any) -> None:
        self.follow_backward(returned, origin, **marks)

    def _correct(self, index: int, returned: Any, original: Any) -> Any:
        return corrected_gradients(self.corrected_functions[index], returned, original)

    def end(self) -> None:
        """Stops following. Otherwise gradient functions would keep the recorder alive through their hooks."""
        self.enter(None)
        self.origins.clear()
        self.corrected_functions.clear()


def _marks(origin: fx.Node) -> dict[str, Any]:
    """Returns the marks of operations that belong to the torch-level node `origin`."""
    location = origin.meta.get("user_location")
    marks = {} if location is None else {"user_location": location}
    return {**marks, "checkpoint": origin.name} if origin.target in CHECKPOINTS else marks


class LocatingInterpreter(fx.Interpreter):
    """Runs a torch-level graph and reports each node to `recorder`; `marks` apply to all nodes."""

    extra_traceback = False

    def __init__(self, gm: fx.GraphModule, recorder: LocationRecorder, **marks: Any) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.recorder = recorder
        self.marks = marks

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.enter(n, **self.marks)
        result = super().run_node(n)
        if n.op != "output":  # the outputs were followed before, and may have lost their history
            written = self.env[n.args[0]] if n.target is operator.setitem and isinstance(n.args[0], fx.Node) else result
            self.recorder.follow_backward(written, n, **self.marks)
        return result
