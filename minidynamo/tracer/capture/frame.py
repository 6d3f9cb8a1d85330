"""Owns the tracing of one frame: from a `FrameRequest` to a `TracedFrame`, in at most two attempts.

It compiles nothing and prints nothing. Nothing is ever undone: when the first attempt cannot go on at an instruction of
the root frame, a second one starts afresh and ends there. A trace starts afresh, too, when the graph checks what it
must not (`tracer/frames/runtime_asserts.py`), and when a derivative turns out to run eagerly (`eager_backward.py`).
Where a frame can be cut is in `cutting.py`, what it leaves to the next one in `frame_end.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import CellType

import torch

from minidynamo.bytecode.analysis import group_of, is_in_try
from minidynamo.errors import Diagnostic, GraphBreak, SkipFrame
from minidynamo.graph.torch_settings import preserved
from minidynamo.guards import state
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Local, Source
from minidynamo.tracer.capture.cutting import Cut, Cuts, break_before
from minidynamo.tracer.capture.eager_backward import DerivativeNotTraced
from minidynamo.tracer.capture.finalizers import gives_up
from minidynamo.tracer.capture.frame_end import finish
from minidynamo.tracer.capture.lost_objects import NOTICED_DEATH
from minidynamo.tracer.capture.registrations import register_all
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.exceptions import Raised
from minidynamo.tracer.frames.interpreter import NULL, Frame
from minidynamo.tracer.frames.runtime_asserts import Unexpected, can_run_twice, may_expect
from minidynamo.tracer.records.frame_request import FrameRequest, StackSlot
from minidynamo.tracer.records.traced_frame import Break, Null, Return, TracedFrame
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.objects import LazyVariable

register_all()


@dataclass(frozen=True, eq=False)
class _Stop:
    """Where the second attempt ends, and what the user is told."""

    cut: Cut
    diagnostic: Diagnostic


class _Stopped(Exception):
    def __init__(self, stop: _Stop) -> None:
        super().__init__(stop)
        self.stop = stop


def trace_frame(request: FrameRequest) -> TracedFrame:
    """Trace a frame to its return or to the first instruction that cannot be captured.

    Raises SkipFrame when the frame cannot be captured or cut, and GraphBreak with `fullgraph`.
    """
    first = 0
    if may_expect(request):
        try:
            return _traced(request, first)
        except Unexpected:
            first = 1
    return _traced(replace(request, expects=False), first)


def _traced(request: FrameRequest, first: int) -> TracedFrame:
    while True:  # each time with one more derivative that runs eagerly
        try:
            return _traced_once(request, first)
        except DerivativeNotTraced:
            first = 1


def _traced_once(request: FrameRequest, first: int) -> TracedFrame:
    stop, number = None, first
    while True:  # each attempt ends before the one before it
        try:
            return _attempt(request, stop, number)
        except _Stopped as stopped:
            if stop is not None and stopped.stop.cut.step >= stop.cut.step:
                raise SkipFrame(stopped.stop.diagnostic) from None
            stop, number = stopped.stop, 1


@preserved()
def _attempt(request: FrameRequest, stop: _Stop | None, number: int) -> TracedFrame:
    spread, expects = request.spread(), request.expects
    tx = Trace(number, frozenset(request.steal), spread, request.profile, expects=expects)
    tx.graph.may_end = not request.fullgraph
    try:
        tx.graph.guard(Constant(None, "global state", hidden=True), GuardKind.GLOBAL_STATE, state.current())
        frame = _root_frame(tx, request)
        _run(request, frame, stop)
        tx.graph.may_end = False
        traced = finish(tx, request, frame, _end(request, frame, stop))
        if not can_run_twice(traced):
            raise Unexpected
        return traced
    finally:
        tx.forget_values()


def _root_frame(tx: Trace, request: FrameRequest) -> Frame:
    trusted = is_trusted_module(request.namespace.get("__name__"))
    cells: dict[str, CellVariable] = {}
    frame = Frame(tx, request.code, request.namespace, {}, cells, tx.chain, trusted=trusted, index=request.index)
    tx.chain.frames.append(frame)
    # What was opened in front of a break has to be closed behind it, error or not.
    tx.chain.awaits_errors = request.index > 0 and not trusted and is_in_try(request.code, request.index)
    for name, value in request.arguments.items():
        frame.local_slots[name] = LazyVariable(value, source=request.local(name))
    for name, cell in request.cells.items():
        source: Source = request.local(name) if request.index else Constant(cell, name)
        tracked = tx.wrap(cell, source)
        assert isinstance(tracked, CellVariable)
        cells[name] = tracked
    for slot in request.stack:
        frame.push(_stack_value(tx, slot))
    lazy = (value for value in frame.held() if isinstance(value, LazyVariable))
    frame.arrived = {value.source: value.value for value in lazy if value.source is not None}
    on_stack = {slot.name for slot in request.stack if slot is not None}
    frame.temporary = {
        source: value
        for source, value in frame.arrived.items()
        if not issubclass(type(value), torch.Tensor) or (isinstance(source, Local) and source.name in on_stack)
    }
    if request.index:  # the cells are the frame's own
        frame.arrived |= {request.local(name): cell for name, cell in request.cells.items()}
    return frame


def _stack_value(tx: Trace, slot: StackSlot | None) -> VariableTracker | Null:
    if slot is None:
        return NULL
    # A cell on its way to a closure is known by identity, not by contents: wrapping it guards nothing.
    source = Local(slot.name)
    is_cell = type(slot.value) is CellType
    return tx.wrap(slot.value, source) if is_cell else LazyVariable(slot.value, source=source)


def _run(request: FrameRequest, frame: Frame, stop: _Stop | None) -> None:
    """Interpret the root frame until it returns or reaches the stop."""
    step, cuts, tx = 0, Cuts(frame), frame.tx
    while frame.result is None and (stop is None or step < stop.cut.step):
        try:
            frame.step()
            tx.graph.shapes.announce_decisions()
            if frame.result is None and gives_up(frame):
                tx.break_graph("MD206", NOTICED_DEATH, why="When the object dies is a part of what the program does.")
        except SkipFrame:
            raise
        except Raised as raised:
            cuts.note_raised(step)
            if not frame.handles(raised):
                raise _Stopped(_Stop(cuts.before(step, raised.in_callee), raised.diagnostic)) from raised
        except GraphBreak as error:
            if request.fullgraph and not _ends_program(frame, error):
                raise
            in_callee = len(frame.chain.frames) > 1
            raise _Stopped(_Stop(cuts.before(step, in_callee), error.diagnostic)) from error
        cuts.note_new(step)
        step += 1
    if frame.result is not None:
        _expect_none_escaping(request, cuts, frame.result)
    elif stop is not None and (earlier := cuts.in_front_of(stop.cut)).step < stop.cut.step:
        raise _Stopped(_Stop(earlier, stop.diagnostic))


def _end(request: FrameRequest, frame: Frame, stop: _Stop | None) -> Return | Break:
    if frame.result is not None:
        return Return(frame.result)
    assert stop is not None
    return break_before(frame, request.title, stop.diagnostic, request.steal, in_callee=stop.cut.in_callee)


def _expect_none_escaping(request: FrameRequest, cuts: Cuts, result: VariableTracker) -> None:
    escaping = cuts.escaping([result])
    if not escaping:
        return
    first = min(escaping, key=cuts.origins.__getitem__)
    diagnostic = cuts.diagnostic(first)
    if request.fullgraph:
        raise GraphBreak(diagnostic)
    raise _Stopped(_Stop(cuts.origins[first], diagnostic))


def _ends_program(frame: Frame, error: GraphBreak) -> bool:
    """Whether the program raises here, and no handler is in sight: nothing follows."""
    frames = frame.chain.frames
    if any(f.instructions[f.index].handler for f in frames):
        return False
    innermost = frames[-1]
    following = innermost.instructions[group_of(innermost.code, innermost.index).stop :]
    raised = error.diagnostic.code == "MD211" and following[0].opname == "RAISE_VARARGS"  # `raise E(...)`
    return raised or error.diagnostic.code == "MD202"
