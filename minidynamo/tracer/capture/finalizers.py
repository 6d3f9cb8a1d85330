"""Owns what a program can see of the death of objects: who is told when one dies, and whether one may be dead by now.

While a frame is traced its real values are all held, so nothing dies then that dies while the program runs. Where that
can be seen, the graph is cut, and Python lets go. Making objects with `__del__` is up to `tracer/calls/construct.py`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from minidynamo.compat import function_of
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.deaths import Lost, are_noticed, are_watched, ends_unseen, loses_unnoticed
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local, Source
from minidynamo.guards.writers import is_living
from minidynamo.tracer.capture.lost_objects import dies_any, history_of, joins
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.graph.dead_code import is_pure
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_value import realized
from minidynamo.tracer.protocol import GraphView, Tracer
from minidynamo.tracer.reachable import needed_by, parts, target_of
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.side_effects import AttrSet, Called, CellSet, Effect, GlobalSet, SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import LazyVariable, ObjectVariable
from minidynamo.variables.references import WeakReferenceVariable
from minidynamo.variables.tensors import TensorVariable

_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_VALUES = (ConstantVariable, NumberVariable)


def lives_on(frame: Frame, variable: VariableTracker) -> bool:
    """Whether somebody can see that a local of the frame is alive although the frame needs it no more."""
    held = [_real(frame, value) for value in _held_by([variable], frame.tx.side_effects)]
    return dies_any(frame.tx.graph, held, (), are_watched)


def is_held_behind(frame: Frame, variable: VariableTracker) -> bool:
    """Whether a local, unless it is bound anew, stays bound behind a break although the frame needs it no more."""
    source = variable.source
    return source in frame.arrived and _holds_more(frame.tx.graph, source, frame.arrived[source])


def _holds_more(graph: GraphView, source: Source, value: object) -> bool:
    """Whether a value that the frame was entered with is more than it looks: a container, an object, or a tensor with
    a history that the program has only moved.

    To know that nobody can see such a value die early, each call would have to look at all that dies with it.
    """
    if not issubclass(type(value), torch.Tensor):
        return not is_constant_value(value)
    return graph.known(source) is None and _is_in_history(value)


def _real(frame: Frame, variable: VariableTracker) -> object:
    found = variable.here if isinstance(variable, ConstantVariable) else getattr(variable, "value", None)
    return frame.arrived.get(variable.source) if found is None and variable.source is not None else found


def let_go(frame: Frame, name: str) -> bool:
    """Note that a local is bound anew or deleted; whether this ends the life of a value, and code may run that sees it.

    Only what a root frame was entered with, and parts of that, can die: everything else is held elsewhere, or new.
    """
    value = frame.local_slots.get(name)
    value = None if value is None else realized(frame.tx, value)
    if frame is not frame.tx.frames[0] or value is None or value.source is None:
        return False
    held = [other.source for other in frame.held()]
    if not isinstance(_root(value.source), Local) or held.count(value.source) > 1:
        return False
    if any(place in held for place in value.source.bases()) and not list(_replaced(frame.tx)):
        return False  # what it is a part of still has it
    real = _real(frame, value)
    frame.lost.append(value if real is None else real)
    return _tells(frame, value.source, real)


def gives_up(frame: Frame) -> bool:
    """Whether the last step of a root frame has ended the life of a value it was entered with, and somebody is told.

    Where nobody is, that is guarded.
    """
    if not frame.temporary:
        return False
    contents = (cell.contents for cell in frame.cells.values())
    held = {id(_real(frame, value)) for value in (*frame.held(), *contents) if value is not None}
    for source, real in [*frame.temporary.items()]:
        if id(real) in held or _is_held(frame, real):
            continue
        del frame.temporary[source]
        if _tells(frame, source, real):
            return True
    return False


def held_to_the_end(
    frame: Frame,
    left: Iterable[VariableTracker],
    behind: Iterable[VariableTracker],
    *,
    resumed: bool,
    returns: bool,
) -> frozenset[Source]:
    """What a root frame was entered with and does not let go of before its end.

    Of everything else that it does not leave behind, it is guarded that nobody can see that it dies earlier: tensors in
    the graph, all others behind a break. What it only hands on to whoever is `behind` holds its own history.
    """
    graph, own = frame.tx.graph, int(resumed)
    told = {guard.source for guard in graph.guards if guard.kind is GuardKind.UNNOTICED_DEATH and not guard.expected}
    kept = {value.source for value in left} - told
    lasting, ends = set[Source](), list[object]()
    history = history_of(value.fake for value in left if isinstance(value, TensorVariable))
    quiet = returns and not frame.tx.side_effects.journal
    for source, value in frame.arrived.items():
        variable = graph.known(source)
        if source in kept or is_constant_value(value):
            continue
        if source in told:
            if isinstance(variable, TensorVariable):
                lost = _how_lost(variable, history) or Lost.ITSELF
                frame.tx.guard(source, GuardKind.UNNOTICED_DEATH, (lost, own, loses_unnoticed))
            continue
        emptied = variable is not None and frame.tx.side_effects.is_changed(variable)  # the dict of keywords, for one
        if returns and not emptied and _holds_more(graph, source, value):
            lasting.add(source)
            continue
        if quiet and isinstance(variable, TensorVariable) and not _reads_more_than(variable):
            continue
        found = _how_lost(variable, history)
        watched = dies_any(graph, [value], (), are_watched)
        if watched and emptied:
            what = f"{frame.code.co_name} runs as written: what it takes out of its arguments is watched"
            raise SkipFrame(Diagnostic("MD206", what, why="When it dies is a part of what the program does."))
        if watched or (found is None and returns):
            lasting.add(source)
        else:
            frame.tx.guard(source, GuardKind.UNNOTICED_DEATH, (found or Lost.ITSELF, own, ends_unseen))
            ends.append(value)
    if any(map(_is_in_history, ends)):
        for place in _moved(graph, behind):
            if place in kept and place in frame.arrived:
                frame.tx.guard(place, GuardKind.UNNOTICED_DEATH, (Lost.HELD,))
    return frozenset(lasting)


def _is_in_history(value: object) -> bool:
    if not issubclass(type(value), torch.Tensor):  # a question to the object itself would be seen
        return False
    assert isinstance(value, torch.Tensor)
    return function_of(value) is not None


def _moved(graph: GraphView, values: Iterable[VariableTracker]) -> list[Source]:
    """Where, among `values`, tensors with a history are that the program has only moved: it has not changed these."""
    lazy = (value for value in values if isinstance(value, LazyVariable) and _is_in_history(value.value))
    return [*dict.fromkeys(v.source for v in lazy if v.source is not None and graph.known(v.source) is None)]


def keep_histories(graph: OutputGraph, left: Iterable[VariableTracker], effects: SideEffects) -> None:
    """Tell the guards which histories are not lost whatever else is: those that what the frame leaves behind joins.

    What is left holds them, and before it was made, what it was made from did.
    """
    if all(guard.kind is not GuardKind.UNNOTICED_DEATH or is_living(guard) for guard in graph.guards):
        return
    written = (value for effect in effects.journal if effects.is_last(effect) for value in needed_by(effect))
    held = [*_held_by((*left, *written), effects)]
    for place in _moved(graph, held):
        graph.guard(place, GuardKind.UNNOTICED_DEATH, (Lost.NO_HISTORY,))
    given = [v for v in graph.values.outside() if isinstance(v, TensorVariable) and _has_history(graph, v)]
    if given:
        history = history_of(value.fake for value in held if isinstance(value, TensorVariable))
        for tensor in given:
            if tensor.source is not None and (tensor in held or joins(tensor.fake, history)):
                graph.guard(tensor.source, GuardKind.UNNOTICED_DEATH, (Lost.NO_HISTORY,))


def _has_history(graph: OutputGraph, tensor: TensorVariable) -> bool:
    real = graph.real(tensor)
    return real is not None and function_of(real) is not None


def _reads_more_than(tensor: TensorVariable) -> bool:
    """Whether the graph may look at something from outside when a tensor is dead: at what its callback writes to.

    What computes with results alone, or with the tensor as well, does not, in whichever order it is compiled.
    """
    nodes = tensor.node.graph.nodes
    if not all(is_pure(node) for node in nodes if node.op.startswith("call")):
        return True
    others = (node for node in nodes if node.op == "placeholder" and node is not tensor.node)
    return any(tensor.node not in user.all_input_nodes for other in others for user in other.users)


def _how_lost(variable: VariableTracker | None, history: set[object]) -> Lost | None:
    """What is to be looked at of a value that dies early; None if of a tensor nobody could tell at a glance."""
    if not isinstance(variable, TensorVariable):
        return Lost.ITSELF
    fake = variable.fake
    if not fake.requires_grad:
        return Lost.WITHOUT_HISTORY
    return Lost.BUT_HISTORY if joins(fake, history) else None


def _is_held(frame: Frame, real: object) -> bool:
    """Whether something that the program has made, or what it writes to, has got a value that is noticed."""
    if not dies_any(frame.tx.graph, [real], (), are_noticed):
        return False
    effects = frame.tx.side_effects
    lasting = (e for e in effects.journal if (target := target_of(e)) is None or not _is_passed(target))
    roots = [*frame.held(), *(value for effect in lasting for value in needed_by(effect))]
    return any(_real(frame, value) is real for value in _held_by(roots, effects))


def _is_passed(target: VariableTracker) -> bool:
    """Whether it is new, or was found in what the frame was entered with, so that it may be gone by now."""
    return target.source is None or isinstance(_root(target.source), Local)


def _held_by(roots: Iterable[VariableTracker], effects: SideEffects) -> Iterator[VariableTracker]:
    """The values themselves, what they are made of, and what has been written to them."""
    todo, found = [*roots], set[VariableTracker]()
    while todo:
        value = todo.pop()
        if value not in found:
            found.add(value)
            yield value
            if value.source is None or not isinstance(value, TupleVariable):
                todo.extend(parts(value, effects))


def _tells(frame: Frame, source: Source, real: object) -> bool:
    if is_constant_value(real):
        return False
    if dies_any(frame.tx.graph, [real], (), are_noticed):
        return True
    frame.tx.guard(source, GuardKind.UNNOTICED_DEATH)
    return False


def _root(source: Source) -> Source:
    return _places(source)[-1]


def may_be_gone(tx: Tracer, is_tensor: bool) -> bool:
    """Whether something that held an object when the frame was entered may have let go of it."""
    root = tx.frames[0]
    assert isinstance(root, Frame)
    values = chain(root.cells.values(), *(frame.held() for frame in tx.frames))
    held = {place for value in values if value.source for place in _places(value.source)}
    consumed = [real for place, real in root.arrived.items() if place not in held]
    return any(_may_hold(value, is_tensor) for value in (*root.lost, *consumed, *_replaced(tx)))


def is_held(tx: Tracer, made: VariableTracker) -> bool:
    """Whether an object made while tracing lives for sure: variables of the frames hold it, or what was made does."""
    root = tx.frames[0]
    assert isinstance(root, Frame)
    waiting = [*root.cells.values(), *chain.from_iterable(frame.held() for frame in tx.frames)]
    seen: set[VariableTracker] = set()
    while waiting:
        variable = waiting.pop()
        if variable is made:
            return True
        if variable not in seen and variable.source is None and not isinstance(variable, WeakReferenceVariable):
            waiting += parts(variable, tx.side_effects)
        seen.add(variable)
    return False


def _places(source: Source) -> tuple[Source, ...]:
    return (source, *source.bases())


def _may_hold(value: object, is_tensor: bool) -> bool:
    """Whether a value can be all that keeps another object (a tensor?) alive, or be that object."""
    if is_constant_value(value) or issubclass(type(value), (*_LASTING, *_VALUES)):
        return False
    if type(value) in (dict, tuple) and not value:
        return False
    return is_tensor or not issubclass(type(value), (torch.Tensor, TensorVariable))


def _replaced(tx: Tracer) -> Iterator[Any]:
    """What others held before the effects of the program so far; the container itself where that is not known."""
    for effect in tx.side_effects.journal:
        target = getattr(effect, "container", None) or getattr(effect, "obj", None) or getattr(effect, "cell", None)
        is_new = target is not None and target.source is None and not _is_real(target)
        if not is_new and not isinstance(effect, Called):
            yield _old_value(effect)


def _is_real(target: object) -> bool:
    return isinstance(target, CellVariable) and target.cell is not None


def _old_value(effect: Effect) -> Any:
    """What an effect on something from outside replaces there, if that is seen at once; else the effect."""
    if isinstance(effect, AttrSet) and isinstance(effect.obj, ObjectVariable):
        names = getattr(effect.obj.value, "__dict__", None)
        return names.get(effect.name) if type(names) is dict else effect
    if isinstance(effect, GlobalSet):
        return effect.namespace.get(effect.name)
    if isinstance(effect, CellSet) and effect.cell.cell is not None:
        try:
            return effect.cell.cell.cell_contents
        except ValueError:
            return None
    return effect
