"""Owns the watch over code that must change nothing that exists around it: what is traced into a subgraph, and what is
traced more or less often than it runs in eager.

What is then done is for the caller to say: custom Functions and checkpoints break the graph. Whether random numbers are
drawn is answered here, too, and whether messages are written.
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
from minidynamo.tracer.graph.dead_code import is_pure
from minidynamo.tracer.graph.subgraphs import Subgraph
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.reachable import is_outside, reachable, target_of
from minidynamo.tracer.records.side_effects import Advanced, ContentsChanged, Effect, Written
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable

# Subgraphs of what is traced for nothing and can be called behind the graph, and those in which messages are written.
_LATER: WeakSet[Subgraph] = WeakSet()
_WITH_MESSAGES: WeakSet[Subgraph] = WeakSet()

_OF_CALLERS = frozenset(("stacklevel", "stack_info", "skip_file_prefixes"))


def may_be_called_later(subgraph: Subgraph) -> None:
    """From now on messages that are written in this subgraph are left to a call behind the graph."""
    _LATER.add(subgraph)


def leaves_message(tx: Tracer, kwargs: Collection[str] = ()) -> bool:
    """Whether a message that is written here, with these keywords, is left to a call behind the graph: one that tells
    nothing of who called the function that is called there."""
    subgraph = tx.graph.subgraph
    if subgraph is None or subgraph not in _LATER or not _OF_CALLERS.isdisjoint(kwargs):
        return False
    _WITH_MESSAGES.add(subgraph)
    return True


def writes_messages(subgraph: Subgraph) -> bool:
    """Whether messages were left."""
    return subgraph in _WITH_MESSAGES


@contextlib.contextmanager
def changing_nothing(
    tx: Tracer, refuse: Callable[[str], object], *, may_restore: bool = False, may_write: bool = False
) -> Iterator[None]:
    """Inside the block, `refuse(what)` is called where something changes that is there now. It has to raise.

    With `may_write`, tensors may be written to: the subgraph has that. With `may_restore`, dicts may change that are as
    they were when the block ends: `functional_call` lends a module other parameters.
    """
    effects = tx.side_effects
    held, _ = reachable([value for frame in tx.frames for value in frame.held()], effects)
    existing, around = frozenset(held), effects.on_effect
    contents = {value: dict(value.items) for value in held if type(value) is DictVariable}
    changed: dict[DictVariable, None] = {}

    def check(effect: Effect) -> None:
        around(effect)
        if isinstance(effect, Written):
            if not may_write:
                refuse("its function writes to a tensor from outside")
            return
        target = _changed_by(effect)
        outside = target is None or is_outside(target) or target in existing
        container = target if may_restore and isinstance(effect, ContentsChanged) else None
        if isinstance(container, DictVariable) and type(container) is DictVariable:  # noqa: SIM102
            if container in changed or container in contents or not effects.is_changed(container):
                changed[container] = None
                return
        if outside:
            refuse("it changes something outside")

    effects.on_effect = check
    try:
        yield
        for container in changed:
            if not _is_restored(tx, container, contents.get(container), container in existing):
                refuse("it changes something outside")
    finally:
        effects.on_effect = around


@contextlib.contextmanager
def unnoticed(tx: Tracer, asked: Sequence[VariableTracker], refuse: Callable[[], object]) -> Iterator[None]:
    """Inside the block, `refuse()` is called where somebody could tell how often code runs that is asked of these
    values: it changes something that is there now, or its operations must stay in the graph. It has to raise."""
    effects, graph = tx.side_effects, tx.graph.graph
    roots = [*asked, *(value for frame in tx.frames for value in frame.held())]
    around, nodes = effects.on_effect, len(graph.nodes)
    existing: set[VariableTracker] = set()

    def check(effect: Effect) -> None:
        around(effect)
        target = _changed_by(effect)
        if not existing:
            existing.update(reachable(roots, effects)[0])
        if target is None or is_outside(target) or target in existing:
            refuse()

    effects.on_effect = check
    try:
        yield
    finally:
        effects.on_effect = around
    made = itertools.islice(reversed(graph.nodes), len(graph.nodes) - nodes)
    if not all(node.op in ("placeholder", "get_attr") or is_pure(node) for node in made):
        refuse()


def _changed_by(effect: Effect) -> VariableTracker | None:
    return effect.iterator if isinstance(effect, Advanced) else target_of(effect)


def _is_restored(
    tx: Tracer, container: DictVariable, before: dict[DictKey, VariableTracker] | None, exists: bool
) -> bool:
    """Whether a dict has the contents that it had; one that was not looked at before is compared with the real one."""
    if before is not None:
        return list(container.items.items()) == list(before.items())
    source = container.source
    if source is None:
        return not exists
    keys = [guard.expected for guard in tx.graph.guards if guard.source == source and guard.kind is GuardKind.DICT_KEYS]
    values = [tx.graph.known(Item(source, key.token)) for key in container.items]
    return keys == [tuple(key.token for key in container.items)] and values == list(container.items.values())


class _Draws(TorchDispatchMode):
    """Notes whether an operation draws random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


def draws_random_numbers(function: Callable[..., Any], fakes: Sequence[Any], mode: FakeTensorMode) -> bool:
    """Whether a function that computes tensors draws random numbers, found out on fake ones of a `mode`."""
    with mode, _Draws() as watch:
        function(*fakes)
    return bool(watch.found)
