"""Owns the limit on unrolling: the graph ends before a loop whose trip count differs too often from call to call.

A loop over a range, a recurrent layer, and code that depends on the length of a list of tensors or numbers are captured
once per trip count or length. Each count needs a version of its own. After a few versions the graph ends before the
loop. Python then runs the loop, whose body is captured once for all iterations; torch runs the layer. The same limit
holds for numbers that Python, torch or a backend needs as constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from minidynamo.errors import UserLocation
from minidynamo.guards.guard import Guard
from minidynamo.guards.profile import Line, TripCounts
from minidynamo.guards.source import Source, stable_name
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.records.traced_frame import TracedFrame
from minidynamo.variables.base import NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, Slots, TupleVariable
from minidynamo.variables.tensors import TensorVariable

# The most trip counts for which a line is captured; and the most lengths of a list to which the frame itself adds.
MOST_NUMBERS, MOST_OF_GROWING = 3, 1


def limit_trip_counts(tx: Tracer, count: float, what: str, *, varies: bool = True, most: int = MOST_NUMBERS) -> None:
    """Records the trip count `count` of `what` at this line of the program; breaks the graph before a count too many.

    The limit is `most` different counts, or a single count if another line of the function was cut before, because
    counts often grow together. `varies`: the count may differ at the next call; otherwise it is not recorded.
    """
    known = tx.graph.shapes.trip_counts
    if known is None or not tx.graph.may_break_here:
        return
    most = 1 if known.has_cut else most
    location = next(frame for frame in reversed(tx.frames) if not frame.is_polyfill).location
    line = location.filename, location.lineno, ""
    captures, numbers = known.numbers(line)
    if captures >= most and count not in numbers:
        known.note_cut()
        tx.break_graph(
            "MD218",
            f"{what} was captured for {most} other trip count{'s' * (most > 1)}, and now has {count}",
            why="Each trip count needs a version of its own; from here on Python runs the loop.",
            fix="Pad to a few lengths, or use operations on the whole tensor.",
        )
    if varies:
        tx.graph.shapes.unrolled.setdefault(line, set()).add(count)
    numbers_so_far = known.unrolled.setdefault(line, set())
    numbers_so_far.add(count)
    if len(numbers_so_far) > 1:
        tx.graph.shapes.differing.add(line)


def limit_comparisons(tx: Tracer) -> None:
    """Records how often a frame compares varying numbers with the same instruction, as the condition of a `while` loop
    does; breaks the graph after a few trip counts."""
    known = tx.graph.shapes.trip_counts
    if known is None or not tx.graph.may_break_here:
        return
    frame = next(frame for frame in reversed(tx.frames) if not frame.is_polyfill)
    line = frame.location.filename, frame.location.lineno, "while"
    captures, _ = known.numbers(line)
    if captures >= MOST_NUMBERS:
        tx.break_graph(
            "MD218",
            f"a loop with a comparison was captured for {captures} trip counts",
            why="Each trip count needs a version of its own; from here on Python runs the loop.",
            fix="Use a fixed trip count, or operations on the whole tensor.",
        )
    times = tx.graph.shapes.compared.setdefault(frame, Counter())
    times[frame.offset] += 1
    if times[frame.offset] > 1:
        tx.graph.shapes.unrolled.setdefault(line, set()).add(times[frame.offset])


def size_here(size: int | torch.SymInt) -> int:
    """Returns the size in this call, without a guard."""
    here: int = size.node.hint if isinstance(size, torch.SymInt) else size
    return here


def limit_lists(tx: Tracer, name: str, args: Sequence[VariableTracker]) -> None:
    """Limits the lengths of external lists among the arguments of a torch function: a graph takes each item
    separately."""
    for arg in args:
        if isinstance(arg, SequenceVariable):
            _limit_length(tx, arg.items, f"{name} of a list")


def limit_pieces(tx: Tracer, name: str, args: Sequence[VariableTracker], pieces: VariableTracker) -> None:
    """Limits the number of pieces of a split tensor, if it depends on a varying size or number."""
    if name.strip("().").rpartition(".")[2] not in _SPLITTING or not isinstance(pieces, SequenceVariable):
        return
    sizes = args[0].fake.shape if args and isinstance(args[0], TensorVariable) else ()
    varies = bool(free_numbers(args)) or any(isinstance(size, torch.SymInt) for size in sizes)
    limit_trip_counts(tx, len(pieces.items), name, varies=varies)


_SPLITTING = ("split", "chunk", "unbind")


def limit_loop(tx: Tracer, sequence: SequenceVariable, what: str = "a loop over data") -> None:
    """Limits the length of an external sequence of data that a loop, or another operation on all items, reads.
    Sequences of other items have no limit: a separately captured loop body would need a version for each item."""
    if isinstance(sequence.items, LazyList) and _is_data(sequence.items.first_on_entry()):
        _limit_length(tx, sequence.items, what)


def limit_contents(tx: Tracer, items: Slots) -> None:
    """Limits the length of an external sequence of data on which any other code depends."""
    if isinstance(items, LazyList) and _is_data(items.first_on_entry()):
        _limit_length(tx, items, "a list of data", most_of_growing=MOST_NUMBERS)


def _is_data(value: object) -> bool:
    """Returns whether a value is a tensor, an int, float or bool, or a non-empty tuple of such values."""
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_data, tuple.__iter__(value)))
    return isinstance(value, torch.Tensor) or type(value) in (int, float, bool)


def limit_copy(tx: Tracer, sequence: VariableTracker) -> None:
    """Limits the length of an external list or tuple that is copied: a copy reads all items."""
    if isinstance(sequence, SequenceVariable):
        _limit_length(tx, sequence.items, "a copy of a list")


def _limit_length(tx: Tracer, items: object, what: str, *, most_of_growing: int = MOST_OF_GROWING) -> None:
    length = items.lazy_length() if isinstance(items, LazyList) else None
    if length is not None:
        limit_trip_counts(tx, length.now, what, most=most_of_growing if length.added > 0 else MOST_NUMBERS)


def free_numbers(args: Iterable[VariableTracker]) -> list[NumberVariable]:
    """Returns the numbers among arguments, and among items of tuples and lists, that are not constants yet."""
    numbers = []
    for arg in args:
        if isinstance(arg, NumberVariable) and arg.specialized is None:
            numbers.append(arg)
        elif isinstance(arg, TupleVariable | ListVariable) and not isinstance(arg.items, LazyList):
            numbers += free_numbers(arg.items)
    return numbers


def depends_on_float(tx: Tracer, source: Source | None, value: object) -> bool:
    """Returns whether a number or text depends on a float that has varied: the number of versions would be unlimited.
    An int computed from a float has few values, and so do infinity and NaN."""
    is_special = isinstance(value, float) and not math.isfinite(value)
    if source is None or is_special or isinstance(value, int | torch.SymInt):
        return False
    return not tx.graph.shapes.varied_floats.isdisjoint((source, *source.bases()))


def limit_constants(
    tx: Tracer, source: Source | None, what: str, where: UserLocation | None, *, most: int = MOST_NUMBERS
) -> None:
    """Ends the graph before `what` if it needs a constant at this line and `most` values were already captured."""
    known = tx.graph.shapes.trip_counts
    if known is None or where is None or not tx.graph.may_break_here:
        return
    for part in () if source is None else (source, *source.bases()):
        captures, _ = known.numbers((where.filename, where.lineno, stable_name(part)))
        if captures >= most:
            others = f"had {captures} other values before" if most == MOST_NUMBERS else "changes"
            tx.break_graph(
                "MD218",
                f"{what} needs a value as a constant, which {others}",
                why="Each value needs a version of its own; from here on Python runs the code.",
                fix="Keep to a few values, or put a number into a tensor.",
            )


def limit_sizes(tx: Tracer, args: Iterable[VariableTracker], what: str, where: UserLocation | None) -> None:
    """Ends the graph before `what` if the sizes of the tensors became constants at this line too often. torch's `kron`
    specializes sizes, as does the derivative of `block_diag`, for example."""
    known = tx.graph.shapes.trip_counts
    if known is None or not known.captures:
        return
    for arg in args:
        for size in tx.graph.shapes.sources_of_sizes(arg.fake) if isinstance(arg, TensorVariable) else ():
            limit_constants(tx, size, what, where)


def newly_constant(traced: TracedFrame, trip_counts: TripCounts) -> bool:
    """Returns whether a backend has specialized a varying float, and records the line. The next capture ends before the
    line and needs no version per value."""
    if traced.shapes is None or not traced.shapes.varied_floats:
        return False
    names = {stable_name(part) for part in traced.shapes.varied_floats}
    found = {line: numbers for line, numbers in constants(traced, traced.all_guards()).items() if line[2] in names}
    new = {line: numbers for line, numbers in found.items() if not trip_counts.numbers(line)[0]}
    trip_counts.note(new)
    return bool(new)


def constants(traced: TracedFrame, guards: Iterable[Guard]) -> dict[Line, set[float | str]]:
    """Returns the specialized numbers, and texts of numbers, by the lines that need constants; `guards` are all guards
    of the frame."""
    by_line: dict[Line, set[float | str]] = {}
    for source, value, where in () if traced.shapes is None else traced.shapes.fixed(guards):
        lines = [where] if where is not None else _lines_that_take(traced, source)
        for line in lines:
            for part in (source, *source.bases()):
                by_line.setdefault((line.filename, line.lineno, stable_name(part)), set()).add(value)
    return by_line


def _lines_that_take(traced: TracedFrame, source: Source) -> list[UserLocation]:
    """Returns the lines whose operations read a number, or a value computed from the number: a backend may specialize
    at any."""
    nodes = [
        graph_input.node for graph_input in traced.inputs if source in (graph_input.source, *graph_input.source.bases())
    ]
    for node in nodes:
        if not isinstance(node.meta.get("example_value"), torch.Tensor):
            nodes += [user for user in node.users if user not in nodes]
    return [node.meta["user_location"] for node in nodes if node.meta.get("user_location") is not None]
