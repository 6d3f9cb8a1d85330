"""Owns the record of one compiled version of a frame, and the order in which versions are tried.

Runs nothing: `frontend/dispatcher.py` puts conditions and bodies into the generated function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minidynamo.core.names import is_weakly_referable
from minidynamo.core.records import record
from minidynamo.core.references import Reference
from minidynamo.guards.check import Condition, describe, write_condition
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.recompiles import GuardFailure, failures
from minidynamo.guards.source import Source, with_constants


def _stored(guard: Guard) -> Callable[[], Guard | None]:
    """Returns a function that returns the guard, and refers weakly to its expected class, function or object; the
    function returns None after the death of the object.
    """
    *names, held = guard.expected if guard.kind is GuardKind.CLASS_ATTR else (guard.expected,)
    if not (guard.kind.value.expects_object and is_weakly_referable(held)):
        return lambda: guard
    reference, rest = Reference(held), replace(guard, expected=None)

    def restored() -> Guard | None:
        found = reference()
        return None if found is None else replace(rest, expected=(*names, found) if names else found)

    return restored


def _rebound(guard: Guard, others: Mapping[int, object]) -> Guard:
    """Returns a guard with sources that read other constants."""
    parts = with_constants((guard.source, guard.expected), others)
    return replace(guard, source=parts[0], expected=parts[1])


@record(eq=False)
class Entry:
    """A compiled version of a frame: a condition on the arguments, and a body to run when the condition holds."""

    #: the guards; expected classes, functions and objects are weak references
    stored: tuple[Callable[[], Guard | None], ...]
    #: the condition; its global names end in the entry's number, so entries of a dispatcher can share globals
    condition: Condition
    #: boxed function of the frame's arguments, in the order of the dispatcher's parameters; if `returns_inputs`, an
    #: optional second argument is the condition's value
    body: Callable[..., Any]
    #: the backend and its code-changing options; None for any
    backend_key: Hashable = None
    #: whether some sizes or numbers are symbolic
    is_general: bool = False
    #: whether the body returns (step, list), or (None, value); the caller then runs the steps
    steps: bool = False
    #: the compile that the entry comes from, which entries of equal callables share; None for an entry of its own
    origin: Any = None
    #: the lock to hold while the body runs, after a second check of the condition
    lock: Source | None = None

    def rebound(self, others: Mapping[int, object]) -> Entry:
        """Returns the entry for an equal callable, still with the body of this entry; `others` maps the id of each
        constant to the callable's own.
        """
        stored = tuple(_stored(_rebound(guard, others)) for guard in self.guards) if others else self.stored
        lock = with_constants(self.lock, others)
        return replace(self, stored=stored, condition=self.condition.rebound(others), lock=lock)

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Returns whether the condition holds for the arguments (by parameter name)."""
        try:
            return bool(eval(self.condition.text, dict(self.condition.namespace), dict(arguments)))
        except Exception:
            return False

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards, without guards whose expected object has died."""
        return tuple(guard for stored in self.stored if (guard := stored()) is not None)

    def alive(self) -> bool:
        """Returns whether the condition can still hold: all objects compared by identity are alive."""
        return all(reference() is not None for reference in self.condition.watched)

    def failures(self, arguments: Mapping[str, Any], backend_key: Hashable = None) -> list[GuardFailure]:
        """Lists the guards that reject the arguments (by parameter name) or the backend; empty if none does."""
        found = failures(self.guards, arguments, backend_key)
        changed = "" if found else self.condition.settings.difference()
        if changed:
            state = Guard(Source(), GuardKind.GLOBAL_STATE)
            expected = "the settings it was compiled under"
            found.append(GuardFailure(state, expected, f"another {changed}", state.advice(None)))
        return found

    def describe(self) -> str:
        """Lists the guards, one per line, with the user's lines."""
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
    origin: Any = None,
    lock: Source | None = None,
) -> Entry:
    """Builds an entry, and writes its condition in the present interpreter-wide state, in which the frame was captured.

    `parameters` are the dispatcher's. `number` is unique among all entries that a dispatcher has ever had. `inputs` are
    the sources of the graph's inputs, for a body that accepts them, already read by the guards, as a second argument.
    """
    if backend_key is not None:
        guards = [Guard(Source(), GuardKind.BACKEND, backend_key), *guards]
    condition = write_condition(guards, parameters, name=name, number=number, inputs=inputs)
    stored = tuple(map(_stored, guards))
    return Entry(stored, condition, body, backend_key, is_general, steps, origin, lock)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries that can still fit, newest first: the latest version is the likeliest to be needed next.

    Specialized entries precede general entries, which may be slower.
    """
    alive = [entry for entry in reversed(list(entries)) if entry.alive()]
    return sorted(alive, key=lambda entry: entry.is_general)
