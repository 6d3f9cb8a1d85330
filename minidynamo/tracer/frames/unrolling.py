"""Owns when the program stops being unrolled: where the number of turns differs from call to call.

A loop over a range and a recurrent layer are captured turn by turn, a list of tensors or one that is copied item by
item: one version for each number of turns. After a few of those the graph ends there. Then Python runs the loop, whose
body is captured once for all turns, and torch the layer. It is the same with numbers that Python, torch or a backend
needs as constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from minidynamo.errors import UserLocation
from minidynamo.guards.guard import Guard
from minidynamo.guards.profile import Line, Turns
from minidynamo.guards.source import Source
from minidynamo.guards.stable_names import stable_name
from minidynamo.tracer.lazy.lazy_containers import LazyItems
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.lazy.lazy_tuples import LazyTuple
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.traced_frame import TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import LazyVariable
from minidynamo.variables.tensors import TensorVariable

# For how many numbers of turns a line is captured.
MOST_NUMBERS = 3


def unroll(tx: Tracer, turns: float, what: str, *, varies: bool = True) -> None:
    """Count the turns for which `what`, at this line of the program, is captured; the graph breaks there where it was
    captured for too many other numbers. Unless it `varies`, the number is one of this capture, and does not count."""
    known = tx.graph.shapes.turns
    if known is None or not tx.graph.may_end_here:
        return
    where = next(frame for frame in reversed(tx.frames) if not frame.is_ours).location
    line = where.filename, where.lineno, ""
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
    numbers_so_far = known.unrolled.setdefault(line, set())
    numbers_so_far.add(turns)
    if len(numbers_so_far) > 1:
        tx.graph.shapes.differing.add(line)


def unroll_comparison(tx: Tracer) -> None:
    """Count how often a frame compares numbers that may vary with the same instruction: in a `while` loop each number
    of turns gives other answers."""
    known = tx.graph.shapes.turns
    if known is None or not tx.graph.may_end_here:
        return
    frame = next(frame for frame in reversed(tx.frames) if not frame.is_ours)
    line = frame.location.filename, frame.location.lineno, "while"
    captures, _ = known.numbers(line)
    if captures >= MOST_NUMBERS:
        tx.break_graph(
            "MD218",
            f"a loop with a comparison has had {captures} numbers of turns",
            why="Each number of turns that is captured takes a version of its own; from here on it is left to Python.",
            fix="use a fixed number of turns, or operations on the whole tensor",
        )
    times = tx.graph.shapes.compared.setdefault(frame, Counter())
    times[frame.offset] += 1
    if times[frame.offset] > 1:
        tx.graph.shapes.unrolled.setdefault(line, set()).add(times[frame.offset])


def size_here(size: int) -> int:
    """A size in this call; nothing is guarded."""
    here: int = size.node.hint if isinstance(size, torch.SymInt) else size
    return here


def unroll_lists(tx: Tracer, name: str, args: Sequence[VariableTracker]) -> None:
    """Count the lengths of lists from outside that a function of torch is given: a graph takes them item by item."""
    for arg in args:
        if isinstance(arg, SequenceVariable):
            _unroll_items(tx, arg, f"{name} of a list")


def unroll_pieces(tx: Tracer, name: str, args: Sequence[VariableTracker], made: VariableTracker) -> None:
    """Count the pieces of a tensor that is split, where their number hangs on a size, or on a number, that varies."""
    if name.strip("().").rpartition(".")[2] not in _SPLITTING or not isinstance(made, SequenceVariable):
        return
    sizes = args[0].fake.shape if args and isinstance(args[0], TensorVariable) else ()
    varies = bool(free_numbers(args)) or any(isinstance(size, torch.SymInt) for size in sizes)
    unroll(tx, len(made.items), name, varies=varies)


_SPLITTING = ("split", "chunk", "unbind")


def unroll_loop(tx: Tracer, sequence: SequenceVariable) -> None:
    """Count the length of a sequence of tensors from outside that is looped over. What is done with other items hangs
    on each of them: a loop's body that is captured for itself would have a version for each."""
    items = sequence.items
    first = items.unread_at(0) if isinstance(items, LazyList | LazyTuple) else None
    value = first.value if isinstance(first, LazyVariable) else None
    if isinstance(first, TensorVariable) or isinstance(value, torch.Tensor):
        _unroll_items(tx, sequence, "a loop over tensors")


def unroll_copy(tx: Tracer, sequence: VariableTracker) -> None:
    """Count the length of a list or tuple from outside that is copied: all of its items are read."""
    if isinstance(sequence, SequenceVariable):
        _unroll_items(tx, sequence, "a copy of a list")


def _unroll_items(tx: Tracer, sequence: SequenceVariable, what: str) -> None:
    items = sequence.items
    length = items.unread_length() if isinstance(items, LazyList | LazyTuple) else None
    if length is not None:
        unroll(tx, length.now, what)


def free_numbers(args: Iterable[VariableTracker]) -> list[NumberVariable]:
    """The numbers among arguments, and among items of tuples and lists, that are no constants so far."""
    found = []
    for arg in args:
        if isinstance(arg, NumberVariable) and arg.pinned is None:
            found.append(arg)
        elif isinstance(arg, TupleVariable | ListVariable) and isinstance(arg.items, list | tuple | LazyItems):
            found += free_numbers(arg.items)
    return found


def depends_on_float(tx: Tracer, source: Source | None, value: object) -> bool:
    """Whether a number or text is as good as a float that has varied: there is no end of values. An int that is made of
    a float has few, and so have infinity and NaN."""
    is_special = isinstance(value, float) and not math.isfinite(value)
    if source is None or is_special or isinstance(value, int | torch.SymInt):
        return False
    return not tx.graph.shapes.varied_floats.isdisjoint((source, *source.bases()))


def expect_no_constant(
    tx: Tracer, source: Source | None, what: str, where: UserLocation | None, *, most: int = MOST_NUMBERS
) -> None:
    """End the graph where `what` takes the number at a place, if `most` others were needed at this line."""
    known = tx.graph.shapes.turns
    if known is None or where is None or not tx.graph.may_end_here:
        return
    for place in () if source is None else (source, *source.bases()):
        captures, _ = known.numbers((where.filename, where.lineno, stable_name(place)))
        if captures >= most:
            others = f"has been {captures} other ones" if most == MOST_NUMBERS else "changes"
            tx.break_graph(
                "MD218",
                f"{what} needs a value as a constant, which {others}",
                why="Each value takes a version of its own; from here on it is left to Python.",
                fix="keep to a few values, or put a number into a tensor",
            )


def expect_no_size(tx: Tracer, args: Iterable[VariableTracker], what: str, where: UserLocation | None) -> None:
    """End the graph where `what` takes tensors whose sizes were constants at this line too often:
    inside torch, `kron` fixes them, and so do derivatives such as that of `block_diag`."""
    known = tx.graph.shapes.turns
    if known is None or not known.captures:
        return
    for arg in args:
        for place in tx.graph.shapes.sizes_behind(arg.fake) if isinstance(arg, TensorVariable) else ():
            expect_no_constant(tx, place, what, where)


def newly_constant(traced: TracedFrame, turns: Turns) -> bool:
    """Whether a backend has needed a float that varies as a constant, which is now noted. A capture that ends in front
    of what takes it does without a version for each value."""
    if traced.shapes is None or not traced.shapes.varied_floats:
        return False
    names = {stable_name(place) for place in traced.shapes.varied_floats}
    found = {line: numbers for line, numbers in constants(traced, traced.all_guards()).items() if line[2] in names}
    new = {line: numbers for line, numbers in found.items() if not turns.numbers(line)[0]}
    turns.note(new)
    return bool(new)


def constants(traced: TracedFrame, guards: Iterable[Guard]) -> dict[Line, set[float | str]]:
    """The numbers that may vary, and texts of them, that have become constants, by the lines that need them; `guards`
    are all there are."""
    found: dict[Line, set[float | str]] = {}
    for source, value, where in () if traced.shapes is None else traced.shapes.fixed(guards):
        lines = [where] if where is not None else _lines_that_take(traced, source)
        for line in lines:
            for place in (source, *source.bases()):
                found.setdefault((line.filename, line.lineno, stable_name(place)), set()).add(value)
    return found


def _lines_that_take(traced: TracedFrame, source: Source) -> list[UserLocation]:
    """The lines whose operations are given a number, or what is computed of it: a backend may need it for any."""
    nodes = [given.node for given in traced.inputs if source in (given.source, *given.source.bases())]
    for node in nodes:
        if not isinstance(node.meta.get("example_value"), torch.Tensor):
            nodes += [user for user in node.users if user not in nodes]
    return [node.meta["user_location"] for node in nodes if node.meta.get("user_location") is not None]
