"""Owns the walk over trackers: the parts of a value.

Changes nothing. External values are leaves, except containers whose contents may have changed: the residual reads
external values at the source and rebuilds changed contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from minidynamo.tracer.frames.generators import GeneratorVariable, parts_of_generator
from minidynamo.tracer.lazy.lazy_dicts import LazyDict, replayed_parts
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.records.side_effects import (
    AttrSet,
    Called,
    CellSet,
    ContentsChanged,
    Effect,
    GlobalSet,
    SideEffects,
)
from minidynamo.variables.base import LazyTextVariable, VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    CellVariable,
    ContextExitVariable,
    LibraryCallable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
    PullBackVariable,
    SuperVariable,
)
from minidynamo.variables.containers import (
    DictVariable,
    DictViewVariable,
    ListVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.iterators import (
    ChainIterator,
    DictIterator,
    EnumerateIterator,
    IndexIterator,
    LibraryIterator,
    MapIterator,
    SequenceIterator,
    SliceIterator,
    ZipIterator,
)
from minidynamo.variables.objects import (
    ContextTokenVariable,
    ExceptionVariable,
    ModuleVariable,
    NamespaceVariable,
    ObjectVariable,
    TracebackVariable,
    WeakReferenceVariable,
)
from minidynamo.variables.tensors import ArrayVariable, GradFnVariable, HookVariable, StorageVariable


def parts(variable: VariableTracker, side_effects: SideEffects) -> Iterator[VariableTracker]:
    """Yields the direct parts of `variable`, in the order of reconstruction."""
    get = _PARTS.get(type(variable))
    if get is not None:
        yield from (part for part in get(variable) if part is not None)
    if isinstance(variable, ObjectVariable):
        yield from (v for v in side_effects.written_attributes(variable).values() if isinstance(v, VariableTracker))


def needed_by(effect: Effect) -> tuple[VariableTracker, ...]:
    """Returns the trackers needed to replay an effect, besides the target."""
    match effect:
        case ContentsChanged(container):
            return tuple(part for part in _PARTS[type(container)](container) if part is not None)
        case AttrSet(_, _, value):
            return (value,)
        case CellSet(_, value) | GlobalSet(_, _, value):
            return () if value is None else (value,)
        case Called(function, args, kwargs):
            return (function, *args, *kwargs.values())
    return ()


def target_of(effect: Effect) -> VariableTracker | None:
    """Returns the tracker that an effect changes; None for effects on globals and for deferred calls."""
    match effect:
        case ContentsChanged(container):
            return container
        case CellSet(cell, _):
            return cell
        case GlobalSet() | Called():
            return None
    return getattr(effect, "obj", None)


def reachable(
    roots: Iterable[VariableTracker], side_effects: SideEffects
) -> tuple[list[VariableTracker], list[Effect]]:
    """Returns all parts of the roots and of the replayed effects, in order of discovery, and the replayed effects.

    These effects are left out:

    - effects on an unreachable object created during tracing or for this call: no code can see the effect
    - new contents of a container that is rebuilt as a whole
    - writes replaced by a later write
    """
    reached: dict[VariableTracker, None] = {}
    journal = side_effects.final_writes()
    waiting = [e for e in journal if not _is_rebuilt_whole(e)]
    effects: list[Effect] = []
    _visit(roots, reached, side_effects)
    progress = True
    while progress:
        progress = False
        for effect in list(waiting):
            target = target_of(effect)
            if target is None or target in reached or _is_seen(target, reached, side_effects):
                waiting.remove(effect)
                effects.append(effect)
                _visit(needed_by(effect) if target is None else (target, *needed_by(effect)), reached, side_effects)
                progress = True
    order = {id(effect): k for k, effect in enumerate(journal)}
    return list(reached), sorted(effects, key=lambda effect: order[id(effect)])


def is_external(variable: VariableTracker) -> bool:
    """Returns whether the value existed before the trace."""
    return variable.source is not None or (isinstance(variable, CellVariable) and variable.cell is not None)


def _is_seen(target: VariableTracker, found: Iterable[VariableTracker], side_effects: SideEffects) -> bool:
    """Returns whether code outside the frame can see the value after the frame; `found` are the values known to be
    seen."""
    if target.source in side_effects.fresh:
        return any(variable.source == target.source for variable in found)  # also as a lazy value
    return is_external(target)


def _is_rebuilt_whole(effect: Effect) -> bool:
    return isinstance(effect, ContentsChanged) and effect.container.source is None


def _visit(roots: Iterable[VariableTracker], found: dict[VariableTracker, None], side_effects: SideEffects) -> None:
    todo = list(roots)[::-1]
    while todo:
        variable = todo.pop()
        if variable in found:
            continue
        found[variable] = None
        if is_external(variable):
            continue  # read at its source; writes are in the journal
        todo.extend(list(parts(variable, side_effects))[::-1])


def has_changed_keys(side_effects: SideEffects, iterator: DictIterator) -> bool:
    """Returns whether the keys of the dict have changed since the loop started, so that the next step raises or skips
    keys."""
    keys = iterator.mapping.items
    if len(keys) != len(iterator.keys):
        return True
    if isinstance(iterator.mapping, SetVariable):
        return iterator.mapping.changes != iterator.changes_at_start
    ordered = reversed(iterator.keys) if iterator.is_reversed else iterator.keys
    return side_effects.is_changed(iterator.mapping) and tuple(keys) != tuple(ordered)


def cannot_be_rebuilt(side_effects: SideEffects, iterator: VariableTracker) -> bool:
    """Returns whether a value is an iterator that would behave differently after reconstruction."""
    if isinstance(iterator, SequenceIterator) and isinstance(iterator.sequence, ListVariable):
        return iterator.changes_at_start is not None and iterator.changes_at_start != iterator.sequence.changes
    if not isinstance(iterator, DictIterator):
        return False
    return bool(iterator.keys) and has_changed_keys(side_effects, iterator)


def _items(variable: SequenceVariable) -> Iterable[VariableTracker]:
    items = variable.items
    return replayed_parts(items) if isinstance(items, LazyList) else items.lazy()


def _keys_and_values(variable: DictVariable) -> Iterator[VariableTracker | None]:
    if isinstance(variable.items, LazyDict):
        yield from replayed_parts(variable.items)
        yield variable.default_factory
        return
    for key, value in variable.items.lazy().items():
        yield key.variable
        yield value
    yield variable.default_factory


def _members(variable: SetVariable) -> Iterable[VariableTracker]:
    items = variable.items
    return replayed_parts(items) if isinstance(items, LazyDict) else [key.variable for key in items]


def _sequence_iterator(variable: SequenceIterator) -> Iterable[VariableTracker]:
    return (variable.sequence,) if isinstance(variable.sequence, SequenceVariable) else variable.sequence.lazy()


def _function(variable: NestedFunctionVariable) -> Iterable[VariableTracker | None]:
    fields = (variable.defaults, variable.kwdefaults, variable.annotations)
    return (*fields, *variable.closure, *variable.attributes.values())


_PARTS: dict[type[VariableTracker], Callable[[Any], Iterable[VariableTracker | None]]] = {
    LazyTextVariable: lambda v: v.operands,
    ListVariable: _items,
    TupleVariable: _items,
    DictVariable: _keys_and_values,
    SetVariable: _members,
    DictViewVariable: lambda v: (v.mapping,),
    SliceVariable: lambda v: (v.start, v.stop, v.step),
    CellVariable: lambda v: (v.contents,),
    NestedFunctionVariable: _function,
    MethodVariable: lambda v: (v.function, v.receiver),
    BoundBuiltin: lambda v: (v.receiver,),
    PartialVariable: lambda v: (v.function, v.args, v.keywords),
    LibraryCallable: lambda v: (*v.args, *v.kwargs.values()),
    SuperVariable: lambda v: (v.receiver,),
    ObjectVariable: lambda v: (v.storage,),
    ModuleVariable: lambda v: (),
    NamespaceVariable: lambda v: (v.owner,),
    ExceptionVariable: lambda v: (v.args, v.cause, v.context),
    TracebackVariable: lambda v: (v.exception,),
    SequenceIterator: _sequence_iterator,
    IndexIterator: lambda v: (v.sequence,),
    DictIterator: lambda v: (v.mapping,),
    ZipIterator: lambda v: v.iterators,
    EnumerateIterator: lambda v: (v.iterator,),
    MapIterator: lambda v: (v.function, *v.iterators),
    ChainIterator: lambda v: (v.iterables, v.current),
    SliceIterator: lambda v: (v.iterator,),
    LibraryIterator: lambda v: (v.iterator,) if v.is_lost else (*v.args, *v.kwargs.values()),
    GeneratorVariable: parts_of_generator,
    ContextExitVariable: lambda v: (v.context,),
    ArrayVariable: lambda v: (v.shared,),
    StorageVariable: lambda v: (v.of,),
    GradFnVariable: lambda v: (v.of,),
    HookVariable: lambda v: (v.state,),
    ContextTokenVariable: lambda v: (v.of,),
    WeakReferenceVariable: lambda v: (v.referent,),
    PullBackVariable: lambda v: v.inputs,
}
