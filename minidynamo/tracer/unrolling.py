"""Owns when the program stops being unrolled: where the number of turns differs from call to call.

A loop over a range and a recurrent layer are captured turn by turn, a list of tensors item by item: one version for
each number of turns. After a few of those the graph ends there. Then Python runs the loop, whose body is captured once
for all turns, and torch the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from minidynamo.tracer.outside_items import OutsideItems
from minidynamo.tracer.outside_tuples import OutsideTuple
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import UnreadVariable
from minidynamo.variables.tensors import TensorVariable

# For how many numbers of turns a line is captured.
MOST_NUMBERS = 3


def unroll(tx: Tracer, turns: float, what: str, *, varies: bool = True) -> None:
    """Count the turns for which `what`, at this line of the program, is captured; the graph breaks there where it was
    captured for too many other numbers. Unless it `varies`, the number is one of this capture, and does not count."""
    known = tx.graph.shapes.turns
    if known is None or not tx.graph.may_end or tx.graph.subgraph is not None:
        return
    where = next(frame for frame in reversed(tx.frames) if not frame.is_ours).location
    line = where.filename, where.lineno
    captures, numbers = known.numbers(line)
    if captures >= MOST_NUMBERS and turns not in numbers:
        tx.break_graph(
            "MD218",
            f"{what} has had {MOST_NUMBERS} other numbers of turns, and now has {turns}",
            why="Each number of turns that is captured takes a version of its own; from here on it is left to Python.",
            fix="pad to a few lengths, or use operations on the whole tensor",
        )
    if varies:
        tx.graph.shapes.unrolled.setdefault(line, set()).add(turns)


def size_here(size: int) -> int:
    """A size in this call; nothing is guarded."""
    here: int = size.node.hint if isinstance(size, torch.SymInt) else size
    return here


def unroll_lists(tx: Tracer, name: str, args: Sequence[VariableTracker]) -> None:
    """Count the lengths of lists from outside that a function of torch is given: a graph takes them item by item."""
    for arg in args:
        if isinstance(arg, SequenceVariable):
            _unroll_items(tx, arg, f"{name} of a list")


def unroll_loop(tx: Tracer, sequence: SequenceVariable) -> None:
    """Count the length of a sequence of tensors from outside that is looped over. What is done with other items hangs
    on each of them: a loop's body that is captured for itself would have a version for each."""
    items = sequence.items
    first = items.unread_at(0) if isinstance(items, OutsideItems | OutsideTuple) else None
    value = first.value if isinstance(first, UnreadVariable) else None
    if isinstance(first, TensorVariable) or isinstance(value, torch.Tensor):
        _unroll_items(tx, sequence, "a loop over tensors")


def _unroll_items(tx: Tracer, sequence: SequenceVariable, what: str) -> None:
    items = sequence.items
    length = items.unread_length() if isinstance(items, OutsideItems | OutsideTuple) else None
    if length is not None:
        unroll(tx, length.there + length.more, what)


def free_numbers(args: Iterable[VariableTracker]) -> list[NumberVariable]:
    """The numbers among arguments, and among items of tuples and lists, that are no constants so far."""
    found = []
    for arg in args:
        if isinstance(arg, NumberVariable) and arg.pinned is None:
            found.append(arg)
        elif isinstance(arg, TupleVariable | ListVariable) and isinstance(arg.items, list | tuple):
            found += free_numbers(arg.items)
    return found


def unroll_numbers(tx: Tracer, name: str, numbers: Sequence[NumberVariable], since: int) -> None:
    """Count the values of numbers that torch has made constants of in a call, by questions behind the first `since`:
    each takes a version."""
    shapes = tx.graph.shapes
    for number in numbers if shapes.asked > since else ():
        here = number.value if number.node is None else number.node.meta["example_value"]
        if isinstance(here, torch.SymInt | torch.SymFloat) and shapes.is_fixed(here, since):
            unroll(tx, number.here, f"a number that {name} takes as a constant")
