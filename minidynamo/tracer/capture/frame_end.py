"""Owns the end of a trace: what the frame leaves behind, and what is guarded, returned, given up or refused for it.

How the frame got there is in `frame.py`; `residual.py` prints the program for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from minidynamo.bytecode.analysis import group_of, sees_deaths
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.graph.marks import RECORDS_WRITES
from minidynamo.graph.torch_settings import Settings, settings, way_to
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Source
from minidynamo.tracer.attributes import MODULE_TABLES, instance_dict
from minidynamo.tracer.capture.early_clears import emptied_places
from minidynamo.tracer.capture.finalizers import held_to_the_end, keep_histories
from minidynamo.tracer.capture.operator_order import takings_of
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.generators import cannot_go_on
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.handlers.vjp import spoilt
from minidynamo.tracer.opcodes.calls import callable_position
from minidynamo.tracer.reachable import reachable, target_of, would_differ
from minidynamo.tracer.records.frame_request import FrameRequest
from minidynamo.tracer.records.side_effects import ContentsChanged
from minidynamo.tracer.records.traced_frame import Break, GraphInput, Return, TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.contexts import ContextVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.iterators import LibraryIterator
from minidynamo.variables.objects import ModuleVariable, ObjectVariable
from minidynamo.variables.tensors import HookVariable, TensorVariable
from minidynamo.variables.transforms import PullBackVariable


def finish(tx: Trace, request: FrameRequest, frame: Frame, end: Return | Break) -> TracedFrame:
    """Close the graph and the journal. Raises SkipFrame when Python alone can make what the frame leaves behind."""
    found, journal = reachable(end.values(), tx.side_effects)
    if _keep_settings(tx, found):
        found, journal = reachable(end.values(), tx.side_effects)
    _refuse_what_only_python_makes(tx, request, frame, end, found)
    written, tx.side_effects.journal[:] = [*tx.side_effects.journal], journal
    for value in found:
        if isinstance(value, ConstantVariable):
            value.identify()
    _guard_changed_apart(tx)
    outputs = tuple(v for v in found if isinstance(v, TensorVariable | HookVariable) and v.source is None)
    changed = [effect.container for effect in journal if isinstance(effect, ContentsChanged)]
    stolen = _stolen_lists(tx, request)
    graph, inputs = tx.graph.finish(outputs, [v for v in changed if isinstance(v, ListVariable)])
    lent = _empty(tx, stolen, found if isinstance(end, Break) else (), inputs)
    lasting = _lasting(request, frame, end, found)
    raises = graph is not None and any(map(may_raise, graph.graph.nodes))
    writes, lookups = (None, None) if graph is None else tx.graph.writes_of(graph, may_raise=raises)
    if graph is not None and raises and lookups is None and writes is not None and writes.are_recorded:
        graph.meta[RECORDS_WRITES] = True
    keep_histories(tx.graph, end.values(), tx.side_effects)
    emptied = emptied_places(written, inputs, {*found})
    return TracedFrame(
        request.title,
        tuple(tx.graph.guards),
        graph,
        inputs,
        outputs,
        tx.side_effects,
        end,
        emits_in_try=tx.chain.emits_in_try,
        awaits_errors=tx.chain.awaits_errors,
        shapes=tx.graph.shapes,
        lent=lent,
        lasting=lasting,
        writes=writes,
        lookups=lookups,
        may_raise=raises,
        emptied=emptied,
        takings=takings_of(graph, inputs, emptied, tx.side_effects.times),
    )


def _lasting(
    request: FrameRequest, frame: Frame, end: Return | Break, found: Iterable[VariableTracker]
) -> frozenset[Source]:
    """What must not die before the end of the frame: not what the caller gave up."""
    if sees_deaths(request.code):
        return frozenset(frame.arrived)
    if isinstance(end, Break):  # what lies on the stack, the next instruction takes; a local is held behind it, too
        arrived = {request.local(slot.name) for slot in request.stack if slot is not None}
        on_stack = [v for v in end.stack if isinstance(v, VariableTracker) and v.source in arrived]
        behind = [*end.local_variables.values(), *end.cells.values()]
        found, _ = reachable([*on_stack, *behind], frame.tx.side_effects)
    else:
        behind = [*end.values()]
    resumed, returns = request.index > 0, isinstance(end, Return)
    return held_to_the_end(frame, found, behind, resumed=resumed, returns=returns) - request.steal.keys()


def _refuse_what_only_python_makes(
    tx: Trace, request: FrameRequest, frame: Frame, end: Return | Break, found: list[VariableTracker]
) -> None:
    code, what, why = "MD202", "", ""
    if any(isinstance(v, ExceptionVariable) and v.is_raised for v in found):
        what = "an exception that was raised is kept"
        why = "Its traceback exists only when Python itself raises it."
    elif unfinished := cannot_go_on(tx.chain, found) or _shows_started_iterator(tx, frame, end):
        code, what, why = "MD222", "a generator has not come to its end", unfinished
    elif lost := _lost_function(tx, found):
        code, what, why = "MD220", "what torch.func.vjp() gave is kept", f"{lost.capitalize()}."
    elif any(would_differ(tx.side_effects, v) for v in found):
        what = "a dict gets other keys while it is looped over"
        why = "Going on with the loop raises RuntimeError."
    if what:
        raise SkipFrame(Diagnostic(code, f"{request.title} runs as written: {what}", why=why))


def _lost_function(tx: Trace, found: Iterable[VariableTracker]) -> str:
    """Why torch cannot make a gradient function behind the graph, or ""."""
    reasons = (spoilt(v, tx.graph.entry_settings) for v in found if isinstance(v, PullBackVariable))
    return next(filter(None, reasons), "")


def _shows_started_iterator(tx: Trace, frame: Frame, end: Return | Break) -> str:
    """Why an iterator of a library that has started cannot be left to Python, or "".

    The iterator of a loop can: only the loop's next step looks at it, and what plays it takes the same steps.
    """
    at_hand = replace(end, stack=end.stack[_first_operand(frame, end) :]) if isinstance(end, Break) else end
    found, _ = reachable(at_hand.values(), tx.side_effects)
    started = [v.cls.__name__ for v in found if isinstance(v, LibraryIterator) and v.is_lost]
    return f"Nothing but Python itself can make a {started[0]} iterator that has started." if started else ""


def _first_operand(frame: Frame, end: Break) -> int:
    """Where on the stack the values begin that the instruction at the break may use."""
    instruction = frame.instructions[group_of(frame.code, end.index)[-1]]
    called = callable_position(frame, instruction)
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


def _keep_settings(tx: Trace, found: Iterable[VariableTracker]) -> bool:
    """Have what was switched for good switched again behind the graph, and contexts entered that stay open among what
    was `found` to live on. Whether there is any of that."""
    now, left = tx.graph.entry_settings, settings()
    before = len(tx.side_effects.journal)
    still_open = [value for value in found if isinstance(value, ContextVariable) and value.depth is not None]
    for context in sorted(still_open, key=_depth):
        if context.factory is torch.inference_mode:
            _switch(tx, replace(now, grad_enabled=context.saved), now)
            now = replace(now, inference=(*now.inference, *context.args), grad_enabled=not context.args[0])
        enter = vars(context.factory)["__enter__"]
        tx.side_effects.call_later(BuiltinVariable(enter, source=Constant(enter, "enter")), context)
    _switch(tx, left, now)
    return len(tx.side_effects.journal) > before


def _depth(context: ContextVariable) -> int:
    return context.depth or 0


def _switch(tx: Trace, wanted: Settings, now: Settings) -> None:
    for function, arguments in way_to(wanted, now):
        switch = BuiltinVariable(function, source=Constant(function, function.__name__))
        tx.side_effects.call_later(switch, *map(ConstantVariable, arguments))


def _is_in_a_variable(source: Source | None) -> bool:
    """Whether a dict may also be the `__dict__` of an object: dicts that other objects hold are not."""
    return source is not None and not any(isinstance(place, InstanceAttr) for place in (source, *source.bases()))


def _tables_like(tx: Trace, changed: VariableTracker) -> Iterator[Source]:
    """Where modules of the same class have what a module has in a table that is changed, as long as those tables are
    other ones that nobody tracks: shallow copies of a module share its tables."""
    place = changed.source
    owner = tx.graph.known(place.of) if isinstance(place, InstanceAttr) and place.name in MODULE_TABLES else None
    if not isinstance(place, InstanceAttr) or not isinstance(owner, ModuleVariable) or owner.value is None:
        return
    table = (instance_dict(owner.value) or {}).get(place.name)
    for other in tx.graph.values.outside():
        if isinstance(other, ModuleVariable) and other is not owner and other.cls is owner.cls and other.source:
            apart = (instance_dict(other.value) or {}).get(place.name)
            if isinstance(apart, dict) and apart is not table and tx.graph.tracker_of(apart) is None:
                yield InstanceAttr(other.source, place.name)


def _guard_changed_apart(tx: Trace) -> None:
    """What the program writes to must not be, next time, the same object as another one that it also looks at."""
    known = [v for v in tx.graph.values.outside() if not isinstance(v, TensorVariable)]
    changed = {target_of(effect) for effect in tx.side_effects.journal}
    for target in known:
        below = target.storage if isinstance(target, ObjectVariable) else None
        if target not in changed and below not in changed:
            continue
        others = tuple(v.source for v in known if v is not target and v.python_type is target.python_type)
        others += tuple(_tables_like(tx, target))
        if others:
            tx.guard(target.source, GuardKind.DISTINCT_OBJECTS, others)
    dicts = [v for v in known if type(v) is DictVariable and _is_in_a_variable(v.source)]
    for obj in known if dicts else ():
        if type(obj) is ObjectVariable and obj.source is not None and instance_dict(obj.value) is not None:
            apart = tuple(v.source for v in dicts if obj in changed or v in changed)
            if apart:
                tx.guard(Attr(obj.source, "__dict__"), GuardKind.DISTINCT_OBJECTS, apart)
