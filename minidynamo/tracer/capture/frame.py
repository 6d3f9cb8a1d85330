"""Owns the tracing of one frame: from a `FrameRequest` to a `TracedFrame`, in at most two attempts.

Compiles nothing and prints nothing. A trace is never undone. If the first attempt fails at an instruction of the root
frame, a second attempt starts again and ends before the instruction. Five more events restart a trace: a forbidden
runtime assert in the graph (`tracer/frames/runtime_asserts.py`), a derivative that has to run eagerly
(`eager_backward.py`), a refused deferral or lock (`tracer/frames/deferrals.py`, `tracer/handlers/locks.py`), an early
read (`tracer/numbers/early_reads.py`), and a further break in a continued loop (`module_loops.py`). `cutting.py` finds
the cuts, `frame_end.py` closes the trace.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from types import CellType

import torch

from minidynamo import compat
from minidynamo.bytecode.analysis import group_of, is_in_try
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphBreak, SkipFrame
from minidynamo.graph.torch_settings import preserved
from minidynamo.guards import state
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Local, Source
from minidynamo.tracer import handlers, opcodes, polyfills, wrappers
from minidynamo.tracer.capture.cutting import Cut, Cuts, break_before
from minidynamo.tracer.capture.eager_backward import DerivativeNotTraced
from minidynamo.tracer.capture.finalizers import VISIBLE_DEATH, argument_died
from minidynamo.tracer.capture.frame_end import finish
from minidynamo.tracer.capture.module_loops import BreaksInLoop, opened, refuse_breaks_in_loops
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.deferrals import PositionRefused
from minidynamo.tracer.frames.interpreter import NULL, Frame, Raised
from minidynamo.tracer.frames.runtime_asserts import AssertsNotAllowed, may_have_asserts, refuse_asserts
from minidynamo.tracer.handlers import locks
from minidynamo.tracer.handlers.preparations import ObjectPrepared
from minidynamo.tracer.numbers.early_reads import ReadsEarly
from minidynamo.tracer.records.traced_frame import Break, FrameRequest, Null, Return, StackSlot, TracedFrame
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.tracer.wrap import lazy_value
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.objects import LazyVariable


@record(frozen=True, eq=False)
class _Stop:
    """The end of the second attempt."""

    #: the step before which the attempt ends
    cut: Cut
    #: the message to the user
    diagnostic: Diagnostic


class _Stopped(Exception):
    def __init__(self, stop: _Stop) -> None:
        super().__init__(stop)
        self.stop = stop


def trace_frame(request: FrameRequest) -> TracedFrame:
    """Traces a frame to the return or to the first unsupported instruction.

    Raises SkipFrame if the frame can be neither captured nor cut, and GraphBreak with `fullgraph`.
    """
    request, is_first = replace(request, may_assert=may_have_asserts(request)), True
    while True:
        try:
            return _trace_until_settled(request, is_first=is_first)
        except AssertsNotAllowed as refused:
            request = replace(request, may_assert=refused.finite_only, may_assume_finite=False)
            is_first = False


def _trace_until_settled(request: FrameRequest, *, is_first: bool) -> TracedFrame:
    # Each retry has one more eager derivative, prepared object or early read, or one deferral or lock less.
    while True:
        try:
            return _trace_to_cut(request, is_first=is_first)
        except (DerivativeNotTraced, ObjectPrepared):
            pass
        except PositionRefused as refused:
            request = replace(request, refused_positions={**request.refused_positions, refused.position: refused.why})
        except ReadsEarly as found:
            request.early_reads.update(found.positions)
        except BreaksInLoop:
            request = replace(request, opens_loops=False)
        is_first = False


def _trace_to_cut(request: FrameRequest, *, is_first: bool) -> TracedFrame:
    stop = None
    while True:  # each attempt ends earlier than the last attempt
        try:
            return _attempt(request, stop, is_first=is_first and stop is None)
        except _Stopped as stopped:
            if stop is not None and stopped.stop.cut.step >= stop.cut.step:
                raise SkipFrame(stopped.stop.diagnostic) from None
            stop = stopped.stop


@preserved()
def _attempt(request: FrameRequest, stop: _Stop | None, *, is_first: bool) -> TracedFrame:
    starred, may_assert = request.starred(), request.may_assert
    tx = Trace(0 if is_first else 1, frozenset(request.steal), starred, request.profile, may_assert=may_assert)
    tx.graph.may_break = not request.fullgraph
    tx.refused_positions, tx.early_reads = request.refused_positions, request.early_reads
    finite = None if request.profile is None else request.profile.finite
    if finite is not None and finite.all_numbers_were_finite and request.may_assume_finite and not request.fullgraph:
        tx.graph.finite = finite
    try:
        tx.graph.guard(Constant(None, "global state", hidden=True), GuardKind.GLOBAL_STATE, state.current())
        frame = _root_frame(tx, request)
        _run(request, frame, stop)
        tx.graph.may_break = False
        traced = finish(tx, request, frame, _end(request, frame, stop))
        refuse_asserts(traced)
        locks.refuse_graph(tx, traced, fullgraph=request.fullgraph)
        return traced
    finally:
        tx.forget_values()


def _root_frame(tx: Trace, request: FrameRequest) -> Frame:
    trusted = is_trusted_module(request.namespace.get("__name__"))
    cells: dict[str, CellVariable] = {}
    frame = Frame(tx, request.code, request.namespace, {}, cells, trusted=trusted, index=request.index)
    tx.frames.append(frame)
    # A `with` block or `try` that is open at a break is closed after the break, error or not.
    tx.user_may_catch = request.index > 0 and not trusted and is_in_try(request.code, request.index)
    for name, value in request.arguments.items():
        frame.local_slots[name] = lazy_value(tx.graph, value, request.local(name))
    for name, cell in request.cells.items():
        source: Source = request.local(name) if request.index else Constant(cell, name)
        tracked = tx.wrap(cell, source)
        assert isinstance(tracked, CellVariable)
        cells[name] = tracked
    for slot in request.stack:
        frame.push(_stack_value(tx, slot, opens_loops=request.opens_loops))
    lazy = (value for value in frame.held() if isinstance(value, LazyVariable))
    frame.entry_values = {value.source: value.value for value in lazy if value.source is not None}
    on_stack = {slot.name for slot in request.stack if slot is not None}
    frame.temporary = {
        source: value
        for source, value in frame.entry_values.items()
        if not issubclass(type(value), torch.Tensor) or (isinstance(source, Local) and source.name in on_stack)
    }
    if request.index:  # the cells are the frame's own
        frame.entry_values |= {request.local(name): cell for name, cell in request.cells.items()}
    return frame


def _stack_value(tx: Trace, slot: StackSlot | None, *, opens_loops: bool) -> VariableTracker | Null:
    if slot is None:
        return NULL
    loop = opened(tx, slot) if opens_loops else None
    if loop is not None:
        return loop
    # A cell that becomes part of a closure is known by identity, not by contents: wrapping guards nothing.
    source = Local(slot.name)
    is_cell = type(slot.value) is CellType
    return tx.wrap(slot.value, source) if is_cell else lazy_value(tx.graph, slot.value, source)


def _run(request: FrameRequest, frame: Frame, stop: _Stop | None) -> None:
    """Interprets the root frame until it returns or reaches the stop."""
    step, cuts, tx = 0, Cuts(frame), frame.tx
    while frame.result is None and (stop is None or step < stop.cut.step):
        try:
            frame.step()
            tx.graph.shapes.report_decisions()
            if frame.result is None and argument_died(frame):
                tx.break_graph("MD206", VISIBLE_DEATH, why="The program can see when the object dies.")
        except SkipFrame as skip:
            locks.refuse_open(tx, skip.diagnostic)
            raise
        except Raised as raised:
            cuts.record_raised(step)
            if not frame.handles(raised):
                locks.refuse_open(tx, raised.diagnostic)
                raise _Stopped(_Stop(cuts.before(step, raised.in_callee), raised.diagnostic)) from raised
        except GraphBreak as error:
            if request.fullgraph and not _ends_program(frame, error):
                raise
            refuse_breaks_in_loops(frame)
            locks.refuse_open(tx, error.diagnostic)
            in_callee = len(frame.tx.frames) > 1
            raise _Stopped(_Stop(cuts.before(step, in_callee), error.diagnostic)) from error
        cuts.record_new(step)
        step += 1
    if frame.result is not None:
        _refuse_escaping(request, cuts, frame.result)
    elif stop is not None and (earlier := cuts.no_later_than(stop.cut)).step < stop.cut.step:
        raise _Stopped(_Stop(earlier, stop.diagnostic))


def _end(request: FrameRequest, frame: Frame, stop: _Stop | None) -> Return | Break:
    if frame.result is not None:
        return Return(frame.result)
    assert stop is not None
    return break_before(frame, request.title, stop.diagnostic, request.steal, in_callee=stop.cut.in_callee)


def _refuse_escaping(request: FrameRequest, cuts: Cuts, result: VariableTracker) -> None:
    escaping = cuts.escaping([result])
    if not escaping:
        return
    first = min(escaping, key=cuts.origins.__getitem__)
    diagnostic = cuts.diagnostic(first)
    if request.fullgraph:
        raise GraphBreak(diagnostic)
    raise _Stopped(_Stop(cuts.origins[first], diagnostic))


def _ends_program(frame: Frame, error: GraphBreak) -> bool:
    """Returns whether the program raises at the present instruction without a handler in any frame: nothing follows."""
    frames = frame.tx.frames
    if any(f.instructions[f.index].handler for f in frames):
        return False
    innermost = frames[-1]
    following = innermost.instructions[group_of(innermost.code, innermost.index).stop :]
    raised = error.diagnostic.code == "MD211" and following[0].opname == "RAISE_VARARGS"  # `raise E(...)`
    return raised or error.diagnostic.code == "MD202"


# Handler files that torch must be built for.
_DISTRIBUTED = tuple(f"{handlers.__name__}.{name}" for name in ("collectives", "sharding"))


def register_all() -> None:
    """Imports every file of opcodes, handlers, polyfills and wrappers."""
    for package in (opcodes, handlers, polyfills, wrappers):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name not in _DISTRIBUTED or compat.HAS_DISTRIBUTED:
                importlib.import_module(module.name)


register_all()
