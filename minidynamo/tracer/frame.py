"""Owns the tracing of one frame: from a `FrameRequest` to a `TracedFrame`, in at most two attempts.

It compiles nothing and prints nothing. Nothing is ever undone: when the first attempt cannot go on at an instruction of
the root frame, a second one starts afresh and ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType
from typing import Any

import torch

from minidynamo.bytecode.analysis import cannot_cut, group_of, live_locals
from minidynamo.compat import set_grad_enabled
from minidynamo.errors import Diagnostic, GraphBreak, SkipFrame
from minidynamo.guards import state
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Local, Source
from minidynamo.tracer import grad_mode, handlers, module_polyfills, polyfills  # registered by being imported
from minidynamo.tracer.generators import GeneratorVariable
from minidynamo.tracer.interpreter import NULL, Frame
from minidynamo.tracer.opcodes import (
    build,
    calls,
    control,
    exceptions_with,
    generators,
    imports,
    loads_stores,
    match,
    operators,
)
from minidynamo.tracer.reachable import has_other_keys, reachable, target_of
from minidynamo.tracer.side_effects import ContentsChanged
from minidynamo.tracer.trace import Trace
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.tracer.traced_frame import Break, GraphInput, Null, Return, TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.contexts import ContextExitVariable
from minidynamo.variables.iterators import DictIterator
from minidynamo.variables.objects import ModuleVariable, UnreadVariable
from minidynamo.variables.tensors import TensorVariable

__all__ = ["FrameRequest", "SkipFrame", "StackSlot", "trace_frame"]

REGISTERED = (
    *(build, calls, control, exceptions_with, generators, imports, loads_stores, match, operators),
    *(grad_mode, handlers, module_polyfills, polyfills),
)


@dataclass(frozen=True, eq=False)
class StackSlot:
    """A value on the stack of a resume point, under the name of the resume function's parameter."""

    name: str
    value: Any


@dataclass(frozen=True, eq=False)
class FrameRequest:
    """One frame to trace, with the real values that it was entered with.

    `index` is the instruction to start at: 0 for a function that is called, else a resume point. `arguments` holds the
    bound plain locals by slot name (for a call: the parameters), `cells` the real cells by name: the closure of a
    called function; all cell and free variables of a resume point. `stack` is bottom first, None for NULL. `steal`
    names list arguments that the caller gave up. With `fullgraph` the first graph break is raised. `parameters` gives
    the generated program's name of a slot whose own name differs from it (not every slot is called by an identifier).
    """

    code: CodeType
    namespace: dict[str, Any]
    arguments: Mapping[str, Any]
    cells: Mapping[str, CellType] = field(default_factory=dict)
    index: int = 0
    stack: tuple[StackSlot | None, ...] = ()
    steal: frozenset[str] = frozenset()
    fullgraph: bool = False
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)

    def local(self, slot: str) -> Local:
        """Where the value of a slot arrives."""
        return Local(self.parameters.get(slot, slot))


@dataclass(frozen=True, eq=False)
class _Stop:
    """Where the second attempt ends: before step `step` of the root frame, and what the user is told."""

    step: int
    diagnostic: Diagnostic
    in_callee: bool


class _Stopped(Exception):
    def __init__(self, stop: _Stop) -> None:
        super().__init__(stop)
        self.stop = stop


def trace_frame(request: FrameRequest) -> TracedFrame:
    """Trace a frame to its return or to the first instruction that cannot be captured.

    Raises SkipFrame when the frame cannot be captured or cut, and GraphBreak with `fullgraph`.
    """
    try:
        return _attempt(request, None)
    except _Stopped as stopped:
        stop = stopped.stop
    try:
        return _attempt(request, stop)
    except _Stopped as again:
        raise SkipFrame(again.stop.diagnostic) from None


def _attempt(request: FrameRequest, stop: _Stop | None) -> TracedFrame:
    tx = Trace(0 if stop is None else 1, request.steal)
    entry_grad_mode = torch.is_grad_enabled()
    try:
        tx.graph.guard(Constant(None, "global state", hidden=True), GuardKind.GLOBAL_STATE, state.current())
        frame = _root_frame(tx, request)
        _run(request, frame, stop)
        end = Return(frame.result) if frame.result is not None else _break(request, frame, stop)
        return _finish(tx, request, frame, end)
    finally:
        set_grad_enabled(entry_grad_mode)
        tx.forget_values()


def _root_frame(tx: Trace, request: FrameRequest) -> Frame:
    trusted = is_trusted_module(request.namespace.get("__name__"))
    cells: dict[str, CellVariable] = {}
    frame = Frame(tx, request.code, request.namespace, {}, cells, tx.chain, trusted=trusted, index=request.index)
    tx.chain.frames.append(frame)
    for name, value in request.arguments.items():
        frame.local_slots[name] = UnreadVariable(value, source=request.local(name))
    for name, cell in request.cells.items():
        source: Source = request.local(name) if request.index else Constant(cell, name)
        tracked = tx.wrap(cell, source)
        assert isinstance(tracked, CellVariable)
        cells[name] = tracked
    for slot in request.stack:
        frame.push(_stack_value(tx, slot))
    return frame


def _stack_value(tx: Trace, slot: StackSlot | None) -> VariableTracker | Null:
    if slot is None:
        return NULL
    # A cell on its way to a closure is known by identity, not by contents: wrapping it guards nothing.
    source = Local(slot.name)
    return (
        tx.wrap(slot.value, source) if isinstance(slot.value, CellType) else UnreadVariable(slot.value, source=source)
    )


def _run(request: FrameRequest, frame: Frame, stop: _Stop | None) -> None:
    """Interpret the root frame until it returns or reaches the stop."""
    step = 0
    while frame.result is None and (stop is None or step < stop.step):
        try:
            frame.step()
        except SkipFrame:
            raise
        except GraphBreak as error:
            if request.fullgraph and not _ends_program(frame, error):
                raise
            # A call may be several instructions; the cut is before the first of them.
            group = group_of(frame.code, frame.index)
            in_callee = len(frame.chain.frames) > 1
            raise _Stopped(_Stop(step - (frame.index - group.start), error.diagnostic, in_callee)) from error
        step += 1


def _ends_program(frame: Frame, error: GraphBreak) -> bool:
    """Whether the program raises here, and no handler is in sight: nothing follows."""
    frames = frame.chain.frames
    if any(f.instructions[f.index].handler for f in frames):
        return False
    innermost = frames[-1]
    following = innermost.instructions[group_of(innermost.code, innermost.index).stop :]
    raised = error.diagnostic.code == "MD211" and following[0].opname == "RAISE_VARARGS"  # `raise E(...)`
    return raised or error.diagnostic.code == "MD202"


def _break(request: FrameRequest, frame: Frame, stop: _Stop | None) -> Break:
    assert stop is not None
    code, index = frame.code, frame.next_index
    reason = cannot_cut(code, index)
    if reason is not None:
        what = f"{request.name or code.co_name} runs as written: it cannot be cut at a graph break"
        raise SkipFrame(Diagnostic("MD220", what, why=reason.capitalize() + ".", where=stop.diagnostic.where))
    live = live_locals(code, index)
    cells = {name: CellVariable() for name in code.co_cellvars} | frame.cells
    return Break(
        index,
        tuple(value if isinstance(value, Null) else _known(frame, value) for value in frame.stack),
        {name: _known(frame, value) for name, value in frame.local_slots.items() if name in live},
        cells,
        stop.diagnostic,
        _compiled_callee(frame, index) if stop.in_callee else None,
    )


def _known(frame: Frame, value: VariableTracker) -> VariableTracker:
    """The tracker of a value that was not read under this name, if it was read under another one."""
    found = frame.tx.graph.known(value.source) if isinstance(value, UnreadVariable) and value.source else None
    return value if found is None else found


def _compiled_callee(frame: Frame, index: int) -> int | None:
    """Where on the stack the user's own callable is that could not be inlined."""
    last = frame.instructions[group_of(frame.code, index)[-1]]
    position = calls.callable_position(frame, last)
    if position is None:
        return None
    callee = frame.stack[position]
    if isinstance(callee, UnreadVariable):
        return position
    function = callee.function if isinstance(callee, MethodVariable) else callee
    own = isinstance(function, FunctionVariable) and not is_trusted_module(function.value.__module__)
    nested = isinstance(function, NestedFunctionVariable)
    return position if own or nested or isinstance(callee, ModuleVariable) else None


def _finish(tx: Trace, request: FrameRequest, frame: Frame, end: Return | Break) -> TracedFrame:
    _restore_grad_mode(tx, end)
    roots: list[VariableTracker] = []
    if isinstance(end, Return):
        roots.append(end.value)
    else:
        roots += [value for value in end.stack if not isinstance(value, Null)]
        roots += [*end.local_variables.values(), *end.cells.values()]
    found, journal = reachable(roots, tx.side_effects)
    if any(isinstance(v, GeneratorVariable) and v.started for v in found):
        what = f"{request.name or request.code.co_name} runs as written: a generator outlives its graph"
        raise SkipFrame(Diagnostic("MD222", what, why="A generator that has started cannot be handed over."))
    if any(isinstance(v, DictIterator) and v.keys and has_other_keys(tx.side_effects, v) for v in found):
        what = f"{request.name or request.code.co_name} runs as written: a dict gets other keys while it is looped over"
        raise SkipFrame(Diagnostic("MD202", what, why="Going on with the loop raises RuntimeError."))
    tx.side_effects.journal[:] = journal
    _guard_changed_apart(tx)
    outputs = tuple(v for v in found if isinstance(v, TensorVariable) and v.source is None)
    changed = [e.container for e in journal if isinstance(e, ContentsChanged)]
    stolen = _stolen_lists(tx, request)
    graph, inputs = tx.graph.finish(outputs, [v for v in changed if isinstance(v, ListVariable)])
    _empty(tx, stolen, end, inputs)
    name = request.name or request.code.co_name
    return TracedFrame(name, tuple(tx.graph.guards), graph, inputs, outputs, tx.side_effects, end)


def _stolen_lists(tx: Trace, request: FrameRequest) -> list[ListVariable]:
    """The lists that the caller gave up, also those that the program has not looked at."""
    names = sorted(request.steal & request.arguments.keys())
    found = [tx.wrap(request.arguments[name], Local(name)) for name in names]
    return [variable for variable in found if isinstance(variable, ListVariable)]


def _empty(tx: Trace, stolen: Iterable[ListVariable], end: Return | Break, inputs: Iterable[GraphInput]) -> None:
    """Lists that were given up are empty at the end, whether the graph took them or not."""
    handled = [given.variable for given in inputs if given.given_up]
    handled += end.local_variables.values() if isinstance(end, Break) else ()
    for variable in stolen:
        if variable not in handled:
            variable.items = []
            tx.side_effects.contents_changed(variable)


def _restore_grad_mode(tx: Trace, end: Return | Break) -> None:
    """A mode that was switched for good is switched again behind the graph, outside contexts that are still open."""
    stack: Iterable[VariableTracker | Null] = end.stack if isinstance(end, Break) else ()
    open_contexts = [value.context for value in stack if isinstance(value, ContextExitVariable)]
    outermost = open_contexts[0].saved if open_contexts else torch.is_grad_enabled()
    if outermost != tx.graph.entry_grad_mode:
        switch = BuiltinVariable(set_grad_enabled, source=Constant(set_grad_enabled, "set_grad_enabled"))
        tx.side_effects.call_later(switch, ConstantVariable(outermost))


def _guard_changed_apart(tx: Trace) -> None:
    """What the program writes to must not be, next time, the same object as another one that it also looks at."""
    known = [v for v in tx.graph.outside() if not isinstance(v, TensorVariable)]
    changed = {target_of(effect) for effect in tx.side_effects.journal}
    for target in known:
        others = tuple(v.source for v in known if v is not target and v.python_type is target.python_type)
        if target in changed and others:
            tx.guard(target.source, GuardKind.DISTINCT_OBJECTS, others)
