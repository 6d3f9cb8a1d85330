"""Owns deferrals: texts of tensors, and lines that the program prints or logs, which wait until the graph has run.

A deferral is refused at the end of the trace if the program could see the difference: if a tensor of the text was
written to later, or if an operator of the user, which may print, too, runs after the deferred line. The frame is then
traced again, and the graph breaks at the position of the deferral.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, NoReturn

import torch
import torch.fx

from minidynamo.compat import memory_of
from minidynamo.core.records import record
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.dead_code import only_computes
from minidynamo.variables.tensors import TensorVariable


class PositionRefused(Exception):
    """Raised when a deferral, or a lock that the frame takes, is refused; `position` is its code object and index,
    `why` the reason for the user."""

    def __init__(self, position: tuple[CodeType, int], why: str = "") -> None:
        super().__init__(position)
        self.position = position
        self.why = why


@record(frozen=True, eq=False)
class Deferral:
    """A text or line that waits until the graph has run."""

    #: the code object and the index of the instruction
    position: tuple[CodeType, int]
    #: whether the settings of torch at the position are those after the graph
    is_allowed: bool
    #: the last node of the graph so far; None if there is none
    last: torch.fx.Node | None
    #: each tensor that the text shows, with its memory and its part in autograd
    tensors: tuple[tuple[TensorVariable, Any], ...]

    def refuse(self) -> NoReturn:
        """Abandons the trace: the next trace breaks the graph at the position."""
        raise PositionRefused(self.position)

    def check(self, tx: Tracer) -> None:
        """Abandons the trace if the text would differ after the graph."""
        memories = {None, *(state[0] for _, state in self.tensors)}
        written = [node.meta["written_memory"] or [None] for node in self._nodes_since(tx) if node.meta.get("mutates")]
        are_unchanged = all(_state(tx, tensor) == state for tensor, state in self.tensors)
        if (
            not self.is_allowed
            or not _has_entry_dtype(tx)
            or not are_unchanged
            or not memories.isdisjoint(itertools.chain(*written))
        ):
            self.refuse()

    def check_output(self, tx: Tracer) -> None:
        """Abandons the trace if the text would differ after the graph, or if another output may come before."""
        self.check(tx)
        if not all(map(only_computes, self._nodes_since(tx))):
            self.refuse()

    def _nodes_since(self, tx: Tracer) -> Iterator[torch.fx.Node]:
        for node in reversed(tx.graph.graph.nodes):
            if node is self.last:
                return
            yield node


def defer(tx: Tracer, tensors: Sequence[TensorVariable] = ()) -> Deferral | None:
    """Returns a deferral at the current instruction of a text that shows `tensors`; None if it was refused before."""
    position = tx.frames[-1].code, tx.frames[-1].index
    if position in tx.refused_positions:
        return None
    is_allowed = tx.graph.subgraph is None and not tx.function_modes and _has_entry_dtype(tx)
    last = next(iter(reversed(tx.graph.graph.nodes)), None)
    return Deferral(position, is_allowed, last, tuple((tensor, _state(tx, tensor)) for tensor in tensors))


def _has_entry_dtype(tx: Tracer) -> bool:
    """Returns whether the default dtype, which texts leave out, is that of the frame's entry."""
    return torch.get_default_dtype() == tx.graph.entry_settings.default_dtype


def _state(tx: Tracer, tensor: TensorVariable) -> Any:
    fake = tx.graph.use(tensor)
    return memory_of(fake), fake.grad_fn, fake.requires_grad
