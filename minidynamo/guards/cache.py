"""Owns the record of one compiled version of a frame, and which versions of a frame are still of use.

It runs nothing; `dispatch/` puts conditions and bodies into the generated function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minidynamo.core.names import is_weakly_referable
from minidynamo.guards.check import Condition, write_condition
from minidynamo.guards.failures import GuardFailure, describe, expectation, failures
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Source


class StoredGuard:
    """A guard that does not keep the class, function or object alive that it expects."""

    def __init__(self, guard: Guard) -> None:
        self._attribute: str | None = None
        expected = guard.expected
        if guard.kind is GuardKind.CLASS_ATTR:
            self._attribute, expected = expected
        self._reference: weakref.ref[Any] | None = None
        self._guard = guard
        if guard.kind in (GuardKind.TYPE, GuardKind.IDENTITY, GuardKind.CLASS_ATTR) and is_weakly_referable(expected):
            self._reference = weakref.ref(expected)
            self._guard = replace(guard, expected=None)

    def guard(self) -> Guard | None:
        """The guard; None when what it expects has died."""
        if self._reference is None:
            return self._guard
        expected = self._reference()
        if expected is None:
            return None
        return replace(self._guard, expected=expected if self._attribute is None else (self._attribute, expected))


@dataclass(eq=False)
class Entry:
    """One compiled version of a frame: when it may run (`condition`, text over the argument names) and what (`body`).

    `body` is a boxed plain function of the frame's arguments, in the order of the dispatcher's parameters. It takes the
    value of the condition as a second argument if `gives_inputs`, and can do without. `namespace` holds the names that
    `condition` uses; they end in the entry's number, so that entries of one dispatcher can share globals. `is_general`:
    some sizes or numbers may be any. `steps`: the body returns a step and its list, or None and the value; whoever
    calls it drives the steps.
    """

    stored: tuple[StoredGuard, ...]
    written: Condition
    body: Callable[..., Any]
    backend_key: Hashable = None
    is_general: bool = False
    steps: bool = False

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards; those that expect an object which has died are left out."""
        return tuple(guard for stored in self.stored if (guard := stored.guard()) is not None)

    @property
    def condition(self) -> str:
        """A Python expression; it may raise, which counts as false."""
        return self.written.text

    @property
    def condition_source(self) -> str:
        """The text of the function that the condition calls, one guard per line; empty when there is none."""
        return self.written.function_source

    @property
    def gives_inputs(self) -> bool:
        """Whether the value of the condition, when it holds, is the list of the graph's inputs."""
        return self.written.gives_inputs

    @property
    def namespace(self) -> dict[str, Any]:
        """The objects that the condition names."""
        return self.written.namespace

    def alive(self) -> bool:
        """Whether the condition can still hold: no object that it compares by identity has died."""
        return all(reference() is not None for reference in self.written.watched)

    def failures(self, arguments: Mapping[str, Any], backend_key: Hashable = None) -> list[GuardFailure]:
        """Why this version does not fit the arguments (by parameter name) and the backend; empty when it does."""
        found = failures(self.guards, arguments, backend_key)
        changed = "" if found else self.written.settings.difference()
        if changed:
            state = Guard(Source(), GuardKind.GLOBAL_STATE)
            found.append(GuardFailure(state, expectation(state), f"another {changed}"))
        return found

    def describe(self) -> str:
        """The guards, one per line, with the user's lines."""
        return describe(self.guards)


def make_entry(
    guards: Sequence[Guard],
    parameters: Sequence[str],
    body: Callable[..., Any],
    *,
    name: str = "frame",
    number: int = 0,
    backend_key: Hashable = None,
    is_general: bool = False,
    inputs: Sequence[Source] = (),
    steps: bool = False,
) -> Entry:
    """An entry whose condition is written now, in the interpreter-wide state in which the frame was captured.

    `parameters` are the dispatcher's; `number` must be unique among the entries that a dispatcher ever had. A body that
    takes what it hands to its graph as a second argument, when the guards have read that, says with `inputs` what it
    is.
    """
    if backend_key is not None:
        guards = [Guard(Source(), GuardKind.BACKEND, backend_key), *guards]
    condition = write_condition(guards, parameters, name=name, number=number, inputs=inputs)
    stored = tuple(map(StoredGuard, guards))
    return Entry(stored, condition, body, backend_key, is_general, steps)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that can still fit, newest first: what was compiled last is most likely needed next.

    Those for some sizes and numbers come before those for any, which may be slower.
    """
    alive = [entry for entry in reversed(list(entries)) if entry.alive()]
    return sorted(alive, key=lambda entry: entry.is_general)
