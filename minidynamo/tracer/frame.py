"""Owns the tracing of one frame: from a `FrameRequest` to a `TracedFrame`, in at most two attempts.

It compiles nothing and prints nothing. Nothing is ever undone: when the first attempt cannot go on at an instruction of
the root frame, a second one starts afresh and ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import CellType, CodeType, FunctionType
from typing import Any

from minidynamo.bytecode.analysis import cannot_cut, group_of, live_locals, starred_parameters
from minidynamo.errors import Diagnostic, GraphBreak, SkipFrame
from minidynamo.guards import state
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Local, Source
from minidynamo.switches import preserved, settings, way_to
from minidynamo.tracer import contextlib_polyfills, grad_mode, handlers, module_polyfills, polyfills  # registered
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.exceptions import Raised
from minidynamo.tracer.generators import cannot_go_on
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
from minidynamo.tracer.reachable import reachable, target_of, would_differ
from minidynamo.tracer.side_effects import ContentsChanged
from minidynamo.tracer.trace import Trace
from minidynamo.tracer.trace_rules import is_trusted_module, runs_as_written
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
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.contexts import ContextExitVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.iterators import LibraryIterator
from minidynamo.variables.objects import ModuleVariable, ObjectVariable, UnreadVariable
from minidynamo.variables.tensors import HookVariable, TensorVariable

__all__ = ["FrameRequest", "SkipFrame", "StackSlot", "trace_frame"]

REGISTERED = (
    *(build, calls, control, exceptions_with, generators, imports, loads_stores, match, operators),
    *(contextlib_polyfills, grad_mode, handlers, module_polyfills, polyfills),
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
    called function; all cell and free variables of a resume point. `stack` is bottom first, None for NULL. `steal` are
    the lists that the caller gave up, with the places where they arrive. With `fullgraph` the first graph break is
    raised. `parameters` gives the generated program's name of a slot whose own name differs from it (not every slot is
    called by an identifier).
    """

    code: CodeType
    namespace: dict[str, Any]
    arguments: Mapping[str, Any]
    cells: Mapping[str, CellType] = field(default_factory=dict)
    index: int = 0
    stack: tuple[StackSlot | None, ...] = ()
    steal: Mapping[Source, Any] = field(default_factory=dict)
    fullgraph: bool = False
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    profile: FrameProfile | None = None

    def local(self, slot: str) -> Local:
        """Where the value of a slot arrives."""
        return Local(self.parameters.get(slot, slot))

    def spread(self) -> frozenset[Source]:
        """Where the arguments arrive that a called function takes with `*` and `**`."""
        names = () if self.index else starred_parameters(self.code)
        return frozenset(self.local(name) for name in names)


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


@preserved()
def _attempt(request: FrameRequest, stop: _Stop | None) -> TracedFrame:
    tx = Trace(0 if stop is None else 1, frozenset(request.steal), request.spread(), request.profile)
    try:
        tx.graph.guard(Constant(None, "global state", hidden=True), GuardKind.GLOBAL_STATE, state.current())
        frame = _root_frame(tx, request)
        _run(request, frame, stop)
        end = Return(frame.result) if frame.result is not None else _break(request, frame, stop)
        return _finish(tx, request, frame, end)
    finally:
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


class _Cuts:
    """Where the root frame, at its present step, can be cut.

    Where an exception is in flight it cannot be. It is cut before the instruction that raised instead, and Python runs
    the handlers. `origins` has the last step before each raised exception at which a cut was possible.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.origins: dict[ExceptionVariable, tuple[int, bool]] = {}
        self._before_handlers: tuple[int, bool] | None = None

    def note_raised(self, step: int) -> None:
        """The program has raised exceptions in this step."""
        raised = self.frame.chain.raised
        new = [exception for exception in raised if exception not in self.origins]
        in_callee = raised[new[-1]].in_callee if new else True
        if self._possible() or self._before_handlers is None:
            self._before_handlers = (self._first(step), in_callee)
        self.origins |= dict.fromkeys(new, self._before_handlers)

    def before(self, step: int, in_callee: bool) -> tuple[int, bool]:
        """The step at which to cut for a break in this one, and whether the break is in a callee."""
        cut = (self._first(step), in_callee)
        if not self._possible() and self._before_handlers is not None:
            cut = self._before_handlers
        escaping = self.escaping(_values(self.frame, self.frame.index))
        return min([cut, *(self.origins[exception] for exception in escaping)])

    def escaping(self, roots: Iterable[VariableTracker]) -> list[ExceptionVariable]:
        """The raised exceptions that outlive the graph, which has no tracebacks for them."""
        if not self.origins:
            return []
        found, _ = reachable(roots, self.frame.tx.side_effects)
        return [v for v in found if isinstance(v, ExceptionVariable) and v in self.origins]

    def _possible(self) -> bool:
        return cannot_cut(self.frame.code, group_of(self.frame.code, self.frame.index).start) is None

    def _first(self, step: int) -> int:
        # A call may be several instructions; the cut is before the first of them.
        return step - (self.frame.index - group_of(self.frame.code, self.frame.index).start)


def _values(frame: Frame, index: int) -> list[VariableTracker]:
    """What the frame still needs at an instruction."""
    live = live_locals(frame.code, index)
    plain = [value for name, value in frame.local_slots.items() if name in live]
    return [*(value for value in frame.stack if not isinstance(value, Null)), *plain, *frame.cells.values()]


def _run(request: FrameRequest, frame: Frame, stop: _Stop | None) -> None:
    """Interpret the root frame until it returns or reaches the stop."""
    step, cuts = 0, _Cuts(frame)
    while frame.result is None and (stop is None or step < stop.step):
        try:
            frame.step()
        except SkipFrame:
            raise
        except Raised as raised:
            cuts.note_raised(step)
            if not frame.handles(raised):
                raise _Stopped(_stop(cuts.before(step, raised.in_callee), raised.diagnostic)) from raised
        except GraphBreak as error:
            if request.fullgraph and not _ends_program(frame, error):
                raise
            in_callee = len(frame.chain.frames) > 1
            raise _Stopped(_stop(cuts.before(step, in_callee), error.diagnostic)) from error
        if len(frame.chain.raised) > len(cuts.origins):
            cuts.note_raised(step)
        step += 1
    if frame.result is not None:
        _expect_no_exceptions(request, cuts, frame.result)


def _stop(cut: tuple[int, bool], diagnostic: Diagnostic) -> _Stop:
    step, in_callee = cut
    return _Stop(step, diagnostic, in_callee)


def _expect_no_exceptions(request: FrameRequest, cuts: _Cuts, result: VariableTracker) -> None:
    escaping = cuts.escaping([result])
    if not escaping:
        return
    first = min(escaping, key=cuts.origins.__getitem__)
    what = f"graph break: a {first.cls.__name__} that was raised is kept"
    why = "Its traceback exists only when Python itself raises it."
    raised = cuts.frame.chain.raised[first].diagnostic
    diagnostic = Diagnostic("MD202", what, why, where=raised.where)
    if request.fullgraph:
        raise GraphBreak(diagnostic)
    raise _Stopped(_stop(cuts.origins[first], diagnostic))


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
    own = isinstance(function, FunctionVariable) and not _is_library(function.value)
    nested = isinstance(function, NestedFunctionVariable)
    return position if own or nested or isinstance(callee, ModuleVariable) or _is_forward(callee) else None


# Methods of torch's modules that call other modules; the last one is DistributedDataParallel's.
_CALLS_MODULES = ("forward", "_run_ddp_forward")


def _is_forward(callee: VariableTracker | Null) -> bool:
    """Whether it is the forward of a module of torch: what it calls may be the user's own modules."""
    if not isinstance(callee, MethodVariable) or not isinstance(callee.receiver, ModuleVariable):
        return False
    function = callee.function
    if not isinstance(function, FunctionVariable) or function.value.__name__ not in _CALLS_MODULES:
        return False
    return not runs_as_written(function.value)


def _is_library(function: FunctionType) -> bool:
    return is_trusted_module(function.__module__) or runs_as_written(function)


def _finish(tx: Trace, request: FrameRequest, frame: Frame, end: Return | Break) -> TracedFrame:
    _keep_settings(tx, end)
    roots: list[VariableTracker] = []
    if isinstance(end, Return):
        roots.append(end.value)
    else:
        roots += [value for value in end.stack if not isinstance(value, Null)]
        roots += [*end.local_variables.values(), *end.cells.values()]
    found, journal = reachable(roots, tx.side_effects)
    if any(isinstance(v, ExceptionVariable) and v.is_raised for v in found):
        what = f"{request.name or request.code.co_name} runs as written: an exception that was raised is kept"
        raise SkipFrame(Diagnostic("MD202", what, why="Its traceback exists only when Python itself raises it."))
    why = cannot_go_on(tx.chain, found) or _shows_started_iterator(tx, frame, end)
    if why:
        what = f"{request.name or request.code.co_name} runs as written: a generator has not come to its end"
        raise SkipFrame(Diagnostic("MD222", what, why=why))
    if any(would_differ(tx.side_effects, v) for v in found):
        what = f"{request.name or request.code.co_name} runs as written: a dict gets other keys while it is looped over"
        raise SkipFrame(Diagnostic("MD202", what, why="Going on with the loop raises RuntimeError."))
    tx.side_effects.journal[:] = journal
    _guard_changed_apart(tx)
    outputs = tuple(v for v in found if isinstance(v, TensorVariable | HookVariable) and v.source is None)
    changed = [e.container for e in journal if isinstance(e, ContentsChanged)]
    stolen = _stolen_lists(tx, request)
    graph, inputs = tx.graph.finish(outputs, [v for v in changed if isinstance(v, ListVariable)])
    lent = _empty(tx, stolen, found if isinstance(end, Break) else (), inputs)
    name = request.name or request.code.co_name
    in_try = tx.chain.emits_in_try
    shapes = tx.graph.shapes
    guards = tuple(tx.graph.guards)
    return TracedFrame(name, guards, graph, inputs, outputs, tx.side_effects, end, in_try, shapes, lent)


def _shows_started_iterator(tx: Trace, frame: Frame, end: Return | Break) -> str:
    """Why an iterator of a library that has started cannot be left to Python, or "".

    The iterator of a loop can: only the loop's next step looks at it, and what plays it takes the same steps.
    """
    if isinstance(end, Return):
        roots: list[VariableTracker] = [end.value]
    else:
        operands = end.stack[_first_operand(frame, end) :]
        roots = [*(v for v in operands if not isinstance(v, Null)), *end.local_variables.values(), *end.cells.values()]
    found, _ = reachable(roots, tx.side_effects)
    started = [v.cls.__name__ for v in found if isinstance(v, LibraryIterator) and v.started]
    return f"Nothing but Python itself can make a {started[0]} iterator that has started." if started else ""


def _first_operand(frame: Frame, end: Break) -> int:
    """Where on the stack the values begin that the instruction at the break may use."""
    instruction = frame.instructions[group_of(frame.code, end.index)[-1]]
    called = calls.callable_position(frame, instruction)
    if called is not None:
        return called
    most = 1 if instruction.opname.startswith("POP_JUMP") else 3
    return max(0, len(end.stack) - most)


def _stolen_lists(tx: Trace, request: FrameRequest) -> list[ListVariable]:
    """The lists that the caller gave up, also those that the program has not looked at."""
    found = [tx.wrap(value, source) for source, value in request.steal.items()]
    return [variable for variable in found if isinstance(variable, ListVariable)]


def _empty(
    tx: Trace,
    stolen: Iterable[ListVariable],
    travelling: Iterable[VariableTracker],
    inputs: Iterable[GraphInput],
) -> tuple[ListVariable, ...]:
    """Lists that were given up are empty at the end, whether the graph took them or not.

    Behind a break the frame goes on with what is `travelling`; the lists among that are returned.
    """
    lent: list[ListVariable] = []
    handled = [given.variable for given in inputs if given.given_up]
    places = {value.source for value in travelling}
    for variable in stolen:
        assert variable.source is not None
        if not places.isdisjoint((variable.source, *variable.source.bases())):
            lent.append(variable)
        elif variable not in handled:
            variable.items = []
            tx.side_effects.contents_changed(variable)
    return tuple(lent)


def _keep_settings(tx: Trace, end: Return | Break) -> None:
    """What was switched for good is switched again behind the graph, outside contexts that are still open."""
    stack: Iterable[VariableTracker | Null] = end.stack if isinstance(end, Break) else ()
    open_contexts = [value.context for value in stack if isinstance(value, ContextExitVariable)]
    left = settings()
    if open_contexts:
        left = replace(left, grad_enabled=open_contexts[0].saved, inference=tx.graph.entry_settings.inference)
    for function, arguments in way_to(left, tx.graph.entry_settings):
        switch = BuiltinVariable(function, source=Constant(function, function.__name__))
        tx.side_effects.call_later(switch, *map(ConstantVariable, arguments))


def _is_in_a_variable(source: Source | None) -> bool:
    """Whether a dict may also be the `__dict__` of an object: dicts that other objects hold are not."""
    return source is not None and not any(isinstance(place, InstanceAttr) for place in (source, *source.bases()))


def _guard_changed_apart(tx: Trace) -> None:
    """What the program writes to must not be, next time, the same object as another one that it also looks at."""
    known = [v for v in tx.graph.values.outside() if not isinstance(v, TensorVariable)]
    changed = {target_of(effect) for effect in tx.side_effects.journal}
    for target in known:
        below = target.storage if isinstance(target, ObjectVariable) else None
        if target not in changed and below not in changed:
            continue
        others = tuple(v.source for v in known if v is not target and v.python_type is target.python_type)
        if others:
            tx.guard(target.source, GuardKind.DISTINCT_OBJECTS, others)
    dicts = [v for v in known if type(v) is DictVariable and _is_in_a_variable(v.source)]
    for obj in known if dicts else ():
        if type(obj) is ObjectVariable and obj.source is not None and instance_dict(obj.value) is not None:
            apart = tuple(v.source for v in dicts if obj in changed or v in changed)
            if apart:
                tx.guard(Attr(obj.source, "__dict__"), GuardKind.DISTINCT_OBJECTS, apart)
