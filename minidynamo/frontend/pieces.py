"""Owns the decision to leave a function with graph breaks to Python, if entering its pieces costs more time than
compiling their tensor operations saves.

The pieces are the frames between graph breaks, and frames that draw random numbers before their graph: Python code runs
before, between or after their graphs anyway. The decision covers all pieces that may follow a frame point, so Python
runs the function from that point to its end. A second decision covers a single piece, the body of a loop: Python then
runs the loop to its end. Each estimate depends on the graph alone, so all runs decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.fx

from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.records import record
from minidynamo.graph.unbacked_symints import hint_of

# Estimates in microseconds; `python -m benchmarks storms` measures the decisions.
# The cost of calling an operation in eager, without and with gradients (forward and backward).
_CALL, _CALL_WITH_GRADIENTS = 1.0, 4.0
# The cost of the guards of a frame after a break, and of the list of its values.
_ENTRY = 3.0
# The cost of a graph's nodes of autograd, forward and backward.
_NODES = 15.0
# Elements that a pointwise operation computes in a microsecond.
_ELEMENTS = 4096


@record(frozen=True)
class Piece:
    """A frame up to its graph break or its end."""

    #: The microseconds that eager needs for the piece, and compiled code does not need.
    saved: float
    #: The microseconds that compiled code needs for entering the piece.
    cost: float
    #: The frame points that may follow.
    exits: frozenset[FramePoint]
    #: Whether the call at the break has compiled code of its own; the frame then stays compiled.
    calls_compiled: bool
    #: Whether the frame calls functions of Python before its graph.
    draws: bool = False
    #: Whether a function of the user was inlined: another call of it may do more work.
    inlines: bool = False

    def merged(self, other: Piece) -> Piece:
        """Merges the estimates of two versions of a frame: the larger saving, the smaller cost."""
        return Piece(
            max(self.saved, other.saved),
            min(self.cost, other.cost),
            self.exits | other.exits,
            self.calls_compiled or other.calls_compiled,
            self.draws or other.draws,
            self.inlines or other.inlines,
        )


# The estimate for a frame that Python always runs.
NOTHING = Piece(0.0, 0.0, frozenset(), False)


def piece_of(
    graph: torch.fx.GraphModule | None,
    exits: frozenset[FramePoint] = frozenset(),
    calls_compiled: bool = False,
    draws: bool = False,
    inlines: bool = False,
) -> Piece:
    """Estimates a piece with the captured `graph`; None for a piece without tensor operations."""
    calls = [] if graph is None else [node for node in graph.graph.nodes if node.op.startswith("call")]
    with_gradients = any(value.requires_grad for node in calls for value in _tensors(node))
    values = [value for node in calls for part in (node, *node.all_input_nodes) for value in _tensors(part)]
    elements = sum(hint_of(value.numel()) for value in values)
    saved = len(calls) * (_CALL_WITH_GRADIENTS if with_gradients else _CALL) + elements / _ELEMENTS
    return Piece(saved, _ENTRY + _NODES * with_gradients, exits, calls_compiled, draws, inlines)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("example_value")
    values = value if isinstance(value, tuple | list) else [value]
    return [part for part in values if isinstance(part, torch.Tensor)]


def left_to_python(pieces: Mapping[FramePoint | None, Piece]) -> list[FramePoint | None]:
    """Lists the frame points (None: the call) from which Python runs the function faster than compiled pieces do."""
    return [point for point in pieces if _is_slower(pieces, point)]


def is_small_loop(point: FramePoint, piece: Piece, *, fuses: bool) -> bool:
    """Returns whether the piece at `point` is the body of a loop, and Python runs an iteration faster than the piece
    does. `fuses`: the backend generates kernels; any other backend gets each graph."""
    certain = point in piece.exits and not (piece.calls_compiled or piece.inlines or piece.draws)
    return certain and piece.saved < (piece.cost if fuses else _CALL)


def _is_slower(pieces: Mapping[FramePoint | None, Piece], start: FramePoint | None) -> bool:
    todo: list[FramePoint | None] = [start]
    followed: dict[FramePoint | None, Piece] = {}
    while todo:
        point = todo.pop()
        if point in followed:
            continue
        if point not in pieces or pieces[point].calls_compiled:
            return False
        followed[point] = pieces[point]
        todo += pieces[point].exits
    has_breaks = start is not None or len(followed) > 1 or any(piece.draws for piece in followed.values())
    return has_breaks and sum(p.saved for p in followed.values()) < sum(p.cost for p in followed.values())
