"""Owns the watch over code that must change no existing value: code in a subgraph, and dry runs.

A dry run is a trace of code that runs more or less often than in eager. The caller decides the reaction to a change:
custom Functions and checkpoints break the graph. The watch also detects draws and messages.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch

from minidynamo.compat import FakeTensorMode, TorchDispatchMode
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Item
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.dead_code import is_pure
from minidynamo.tracer.graph.open_graphs import Subgraph
from minidynamo.tracer.reachable import is_external, reachable, target_of
from minidynamo.tracer.records.side_effects import Advanced, CellSet, ContentsChanged, Effect, Written
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable

# Dry runs whose function can be called after the graph, and dry runs with messages that are deferred to the call.
_DEFERRING: WeakSet[Subgraph] = WeakSet()
_WITH_DEFERRED_MESSAGES: WeakSet[Subgraph] = WeakSet()

_CALLER_KEYWORDS = frozenset(("stacklevel", "stack_info", "skip_file_prefixes"))


def defer_messages(subgraph: Subgraph) -> None:
    """Defers the messages of this subgraph to a call of the function after the graph."""
    _DEFERRING.add(subgraph)


def defers_message(tx: Tracer, kwargs: Collection[str] = ()) -> bool:
    """Returns whether a message, logged with these keywords, is deferred to a call after the graph.

    A message that depends on the caller of the function is not deferred.
    """
    subgraph = tx.graph.subgraph
    if subgraph is None or subgraph not in _DEFERRING or not _CALLER_KEYWORDS.isdisjoint(kwargs):
        return False
    _WITH_DEFERRED_MESSAGES.add(subgraph)
    return True


def has_deferred_messages(subgraph: Subgraph) -> bool:
    """Returns whether messages were deferred."""
    return subgraph in _WITH_DEFERRED_MESSAGES


def existing_values(tx: Tracer) -> frozenset[VariableTracker]:
    """Returns the values that the frames hold now."""
    return frozenset(reachable([value for frame in tx.frames for value in frame.held()], tx.side_effects)[0])


@contextlib.contextmanager
def watching(tx: Tracer, check: Callable[[Effect], object]) -> Iterator[None]:
    """Calls `check(effect)` for each side effect of the block."""
    effects = tx.side_effects
    outer_callback = effects.on_effect

    def call_both(effect: Effect) -> None:
        outer_callback(effect)
        check(effect)

    effects.on_effect = call_both
    try:
        yield
    finally:
        effects.on_effect = outer_callback


@contextlib.contextmanager
def without_side_effects(
    tx: Tracer, refuse: Callable[[str], object], *, may_restore: bool = False, may_write: bool = False
) -> Iterator[None]:
    """Calls `refuse(reason)`, which must raise, when the block changes a value that exists before the block.

    `may_write`: the block may write to tensors; the subgraph records the writes. `may_restore`: the block may change
    dicts if it restores their contents, as `functional_call` does with the parameters of a module.
    """
    existing = existing_values(tx)
    contents = {value: dict(value.items) for value in existing if type(value) is DictVariable}
    changed: dict[DictVariable, None] = {}

    def check(effect: Effect) -> None:
        if isinstance(effect, Written):
            if not may_write:
                refuse("its function writes to a tensor from outside")
            return
        target = _changed_by(effect)
        outside = target is None or is_external(target) or target in existing
        container = target if may_restore and isinstance(effect, ContentsChanged) else None
        if isinstance(container, DictVariable) and type(container) is DictVariable:  # noqa: SIM102
            if container in changed or container in contents or not tx.side_effects.is_changed(container):
                changed[container] = None
                return
        if outside:
            refuse("it changes something outside")

    with watching(tx, check):
        yield
        for container in changed:
            if not _is_restored(tx, container, contents.get(container), container in existing):
                refuse("it changes something outside")


@contextlib.contextmanager
def without_changed_reads(
    tx: Tracer, args: Sequence[VariableTracker], refuse: Callable[[str], object]
) -> Iterator[None]:
    """Calls `refuse(reason)`, which must raise, when the block reads a value that the frame has changed.

    The graph runs the code of the block again, before the changes are replayed. Containers and cells count as read,
    except containers that the graph rebuilds, among `args`.
    """
    effects = tx.side_effects
    rebuilt, _ = reachable(args, effects)
    reason = "it may read what the frame has changed before"
    changed = [target_of(effect) for effect in effects.journal if isinstance(effect, ContentsChanged | CellSet)]
    if any(v is not None and is_external(v) and v.source not in effects.fresh and v not in rebuilt for v in changed):
        refuse(reason)

    def check(owner: VariableTracker | None) -> None:
        if owner is None or is_external(owner):
            refuse(reason)

    outer_callback, effects.on_read = effects.on_read, check
    try:
        yield
    finally:
        effects.on_read = outer_callback


@contextlib.contextmanager
def unobservable(tx: Tracer, values: Sequence[VariableTracker], refuse: Callable[[], object]) -> Iterator[None]:
    """Calls `refuse()`, which must raise, when the number of times the block runs is observable.

    The number is observable if the block changes an existing value, such as one of `values`, or if its operations must
    stay in the graph.
    """
    graph = tx.graph.graph
    roots = [*values, *(value for frame in tx.frames for value in frame.held())]
    nodes = len(graph.nodes)
    existing: set[VariableTracker] = set()

    def check(effect: Effect) -> None:
        target = _changed_by(effect)
        if not existing:
            existing.update(reachable(roots, tx.side_effects)[0])
        if target is None or is_external(target) or target in existing:
            refuse()

    with watching(tx, check):
        yield
    new_nodes = itertools.islice(reversed(graph.nodes), len(graph.nodes) - nodes)
    if not all(node.op in ("placeholder", "get_attr") or is_pure(node) for node in new_nodes):
        refuse()


def _changed_by(effect: Effect) -> VariableTracker | None:
    return effect.iterator if isinstance(effect, Advanced) else target_of(effect)


def _is_restored(
    tx: Tracer, container: DictVariable, before: dict[DictKey, VariableTracker] | None, exists: bool
) -> bool:
    """Returns whether a dict has its old contents; a dict that was not read before is compared with the real dict."""
    if before is not None:
        return list(container.items.items()) == list(before.items())
    source = container.source
    if source is None:
        return not exists
    keys = [guard.expected for guard in tx.graph.guards if guard.source == source and guard.kind is GuardKind.DICT_KEYS]
    values = [tx.graph.known(Item(source, key.token)) for key in container.items]
    return keys == [tuple(key.token for key in container.items)] and values == list(container.items.values())


class _DrawDetector(TorchDispatchMode):
    """A dispatch mode for detecting draws of random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


def draws_random_numbers(function: Callable[..., Any], fakes: Sequence[Any], mode: FakeTensorMode) -> bool:
    """Returns whether a function of tensors draws random numbers; it runs on fake tensors of `mode`."""
    with mode, _DrawDetector() as watch:
        function(*fakes)
    return bool(watch.found)
