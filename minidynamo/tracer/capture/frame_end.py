"""Owns the end of a trace: the results of the frame, their guards, donated lists, and the reasons to refuse the frame.

`frame.py` runs the trace up to here; `residual.py` prints the residual program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from minidynamo.bytecode.analysis import group_of, observes_deaths
from minidynamo.compat import push_function_mode
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.graph.marks import RECORDS_WRITES
from minidynamo.graph.torch_settings import Settings, settings, switches_between
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Source
from minidynamo.tracer.attributes import MODULE_TABLES, instance_dict
from minidynamo.tracer.capture.early_clears import find_early_clears
from minidynamo.tracer.capture.finalizers import kept_to_the_end
from minidynamo.tracer.capture.predicted_profile import written_sizes
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.generators import why_not_resumable
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.handlers.inlined_hooks import inline_hooks
from minidynamo.tracer.handlers.transforms import why_stale
from minidynamo.tracer.opcodes.calls import callable_position
from minidynamo.tracer.reachable import cannot_be_rebuilt, reachable, target_of
from minidynamo.tracer.records.side_effects import ContentsChanged
from minidynamo.tracer.records.traced_frame import Break, FrameRequest, GraphInput, Return, TracedFrame
from minidynamo.variables.base import ConstantVariable, LazyTextVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, ContextVariable, PullBackVariable
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.iterators import LibraryIterator
from minidynamo.variables.objects import ExceptionVariable, ModuleVariable, ObjectVariable
from minidynamo.variables.tensors import GradFnVariable, ItemVariable, OpaqueResult, TensorVariable


def finish(tx: Trace, request: FrameRequest, frame: Frame, end: Return | Break) -> TracedFrame:
    """Closes the graph and the journal. Raises SkipFrame if only Python itself can create a result of the frame."""
    if isinstance(end, Return):
        inline_hooks(tx, end.values())
    found, journal = reachable(end.values(), tx.side_effects)
    if _keep_settings(tx, found):
        found, journal = reachable(end.values(), tx.side_effects)
    for text in found:
        if isinstance(text, LazyTextVariable):
            text.check(tx)
    for check in tx.output_checks:
        check(tx)
    _refuse_unrebuildable(tx, request, frame, end, found)
    written, tx.side_effects.journal[:] = [*tx.side_effects.journal], journal
    _guard_distinct(tx)
    outputs = tuple(
        v for v in found if isinstance(v, TensorVariable | OpaqueResult | ItemVariable) and v.source is None
    )
    changed = [effect.container for effect in journal if isinstance(effect, ContentsChanged)]
    donated_lists = _donated_lists(tx, request)
    graph, inputs = tx.graph.finish(outputs, [v for v in changed if isinstance(v, ListVariable)])
    donated_after_break = _empty_donated(tx, donated_lists, found if isinstance(end, Break) else (), inputs)
    lasting = _lasting(request, frame, end, found)
    raises = graph is not None and any(map(may_raise, graph.graph.nodes))
    writes, lookups = (None, None) if graph is None else tx.graph.writes_of(graph, may_raise=raises)
    if graph is not None and raises and lookups is None and writes is not None and writes.are_recorded:
        graph.meta[RECORDS_WRITES] = True
    return TracedFrame(
        request.title,
        tuple(tx.graph.guards),
        graph,
        inputs,
        outputs,
        tx.side_effects,
        end,
        emits_in_try=tx.emits_in_try,
        user_may_catch=tx.user_may_catch,
        shapes=tx.graph.shapes,
        donated_after_break=donated_after_break,
        lasting=lasting,
        writes=writes,
        lookups=lookups,
        may_raise=raises,
        early_clears=find_early_clears(written, inputs, {*found}),
        lock=None if tx.lock is None else tx.lock.lock.source,
        written_sizes=written_sizes(tx.side_effects),
    )


def _lasting(
    request: FrameRequest, frame: Frame, end: Return | Break, found: Iterable[VariableTracker]
) -> frozenset[Source]:
    """Returns the sources of the arguments that must not die before the end of the frame: no donated argument is among
    them."""
    if observes_deaths(request.code):
        return frozenset(frame.entry_values)
    if isinstance(end, Break):  # the next instruction pops the stack, but locals keep their values after it
        stack_sources = {request.local(slot.name) for slot in request.stack if slot is not None}
        on_stack = [v for v in end.stack if isinstance(v, VariableTracker) and v.source in stack_sources]
        bound = [*end.local_variables.values(), *end.cells.values()]
        found, _ = reachable([*on_stack, *bound], frame.tx.side_effects)
    return kept_to_the_end(frame, found, returns=isinstance(end, Return)) - request.steal.keys()


def _refuse_unrebuildable(
    tx: Trace, request: FrameRequest, frame: Frame, end: Return | Break, found: list[VariableTracker]
) -> None:
    code, what, why = "MD202", "", ""
    if any(isinstance(v, ExceptionVariable) and v.is_raised for v in found):
        what = "an exception that was raised is kept"
        why = "Its traceback exists only when Python itself raises it."
    elif unfinished := why_not_resumable(tx, found) or _shows_started_iterator(tx, frame, end):
        code, what, why = "MD222", "a generator has not finished", unfinished
    elif lost := _vjp_error(tx, found):
        code, what, why = "MD220", "the gradient function of torch.func.vjp() is kept", f"{lost.capitalize()}."
    elif any(isinstance(v, GradFnVariable) and _is_replaced(tx, v) for v in found):
        code, what, why = "MD212", "the `grad_fn` of a tensor is kept", "A write to the tensor replaces it."
    elif any(cannot_be_rebuilt(tx.side_effects, v) for v in found):
        what = "the keys of a dict change during a loop over the dict"
        why = "The next step of the loop raises RuntimeError."
    if what:
        raise SkipFrame(Diagnostic(code, f"{request.title} runs eagerly: {what}", why=why))


def _is_replaced(tx: Trace, grad_fn: GradFnVariable) -> bool:
    """Returns whether the tensor has a different autograd node now than when the program read `grad_fn`."""
    return grad_fn.source is None and tx.graph.use(grad_fn.of).grad_fn is not grad_fn.function


def _vjp_error(tx: Trace, found: Iterable[VariableTracker]) -> str:
    """Returns the reason why torch cannot create a gradient function after the graph; "" if it can."""
    reasons = (why_stale(v, tx.graph.entry_settings) for v in found if isinstance(v, PullBackVariable))
    return next(filter(None, reasons), "")


def _shows_started_iterator(tx: Trace, frame: Frame, end: Return | Break) -> str:
    """Returns the reason why a started iterator of a library cannot be left to Python; "" if none has started.

    The iterator of a loop can: only the next step of the loop reads it, and the replacement takes the same steps.
    """
    visible = replace(end, stack=end.stack[_first_operand(frame, end) :]) if isinstance(end, Break) else end
    found, _ = reachable(visible.values(), tx.side_effects)
    started = [v.cls.__name__ for v in found if isinstance(v, LibraryIterator) and v.is_lost]
    return f"Only Python itself can create a started {started[0]} iterator." if started else ""


def _first_operand(frame: Frame, end: Break) -> int:
    """Returns the stack position of the first operand of the instruction at the break."""
    instruction = frame.instructions[group_of(frame.code, end.index)[-1]]
    called = callable_position(frame, instruction)
    if called is not None:
        return called
    most = 1 if instruction.opname.startswith("POP_JUMP") else 3
    return max(0, len(end.stack) - most)


def _donated_lists(tx: Trace, request: FrameRequest) -> list[ListVariable]:
    """Returns the lists donated by the caller, read or not."""
    variables = [tx.wrap(value, source) for source, value in request.steal.items()]
    return [variable for variable in variables if isinstance(variable, ListVariable)]


def _empty_donated(
    tx: Trace,
    donated_lists: Iterable[ListVariable],
    needed: Iterable[VariableTracker],
    inputs: Iterable[GraphInput],
) -> tuple[ListVariable, ...]:
    """Empties the donated lists at the end, whether or not the graph took their elements.

    Returns the donated lists that are in `needed`: after a break the frame still needs them.
    """
    donated_after_break: list[ListVariable] = []
    handled = [graph_input.variable for graph_input in inputs if graph_input.is_emptied]
    sources = {value.source for value in needed}
    for variable in donated_lists:
        assert variable.source is not None
        if not sources.isdisjoint((variable.source, *variable.source.bases())):
            donated_after_break.append(variable)
        elif variable not in handled:
            variable.items = []
            tx.side_effects.contents_changed(variable)
    return tuple(donated_after_break)


def _keep_settings(tx: Trace, found: Iterable[VariableTracker]) -> bool:
    """Replays changed torch settings, and open contexts in `found`, after the graph. Returns whether the journal got
    new calls."""
    now, at_end = tx.graph.entry_settings, settings()
    before = len(tx.side_effects.journal)
    still_open = [value for value in found if isinstance(value, ContextVariable) and value.depth is not None]
    for context in sorted(still_open, key=_depth):
        if context.factory is torch.inference_mode:
            _switch(tx, replace(now, grad_enabled=context.saved), now)
            now = replace(now, inference=(*now.inference, *context.args), grad_enabled=not context.args[0])
        enter = vars(context.factory)["__enter__"]
        tx.side_effects.record_call(BuiltinVariable(enter, source=Constant(enter, "enter")), context)
    push = BuiltinVariable(push_function_mode, source=Constant(push_function_mode, "push"))
    for mode in tx.function_modes:
        tx.side_effects.record_call(push, mode)
    _switch(tx, at_end, now)
    return len(tx.side_effects.journal) > before


def _depth(context: ContextVariable) -> int:
    return context.depth or 0


def _switch(tx: Trace, wanted: Settings, now: Settings) -> None:
    for function, arguments in switches_between(wanted, now):
        switch = BuiltinVariable(function, source=Constant(function, function.__name__))
        tx.side_effects.record_call(switch, *map(ConstantVariable, arguments))


def _may_be_instance_dict(source: Source | None) -> bool:
    """Returns whether a dict may also be the `__dict__` of an object: a dict in an attribute of an object may not."""
    return source is not None and not any(isinstance(part, InstanceAttr) for part in (source, *source.bases()))


def _tables_like(tx: Trace, changed: VariableTracker) -> Iterator[Source]:
    """Yields the sources of the same table of nn.Module in other modules of the class, if that table is another dict
    without a tracker. In the next call it may be the same dict: a shallow copy of a module shares its tables."""
    source = changed.source
    owner = tx.graph.known(source.of) if isinstance(source, InstanceAttr) and source.name in MODULE_TABLES else None
    if not isinstance(source, InstanceAttr) or not isinstance(owner, ModuleVariable) or owner.value is None:
        return
    table = (instance_dict(owner.value) or {}).get(source.name)
    for other in tx.graph.values.external_values():
        if isinstance(other, ModuleVariable) and other is not owner and other.cls is owner.cls and other.source:
            other_table = (instance_dict(other.value) or {}).get(source.name)
            if isinstance(other_table, dict) and other_table is not table and tx.graph.tracker_of(other_table) is None:
                yield InstanceAttr(other.source, source.name)


def _guard_distinct(tx: Trace) -> None:
    """Guards that a written object is not, at the next call, identical with another object that the program reads."""
    known = [v for v in tx.graph.values.external_values() if not isinstance(v, TensorVariable)]
    changed = {target_of(effect) for effect in tx.side_effects.journal}
    for target in known:
        storage = target.storage if isinstance(target, ObjectVariable) else None
        if target not in changed and storage not in changed:
            continue
        others = tuple(v.source for v in known if v is not target and v.python_type is target.python_type)
        others += tuple(_tables_like(tx, target))
        if others:
            tx.guard(target.source, GuardKind.DISTINCT_OBJECTS, others)
    dicts = [v for v in known if type(v) is DictVariable and _may_be_instance_dict(v.source)]
    for obj in known if dicts else ():
        if type(obj) is ObjectVariable and obj.source is not None:
            others = tuple(v.source for v in dicts if v is not obj.shares and (obj in changed or v in changed))
            if others and instance_dict(obj.value) is not None:  # the read creates the dictionary of a partial
                tx.guard(Attr(obj.source, "__dict__"), GuardKind.DISTINCT_OBJECTS, others)
