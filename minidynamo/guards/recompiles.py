"""Owns the explanation of a recompile: the guards of a version that fail, and the messages about them.

Slow and thorough; `check.py` writes the fast text. The words about a guard are in its row (`guard.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo.core.names import Namespace
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, counted
from minidynamo.guards.advice import MISSING, NUMBERS_VARY, SIZES_VARY
from minidynamo.guards.check import conjuncts, ordered
from minidynamo.guards.guard import Guard, GuardKind, reader_of
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Local, Source
from minidynamo.guards.values import brief


@record(frozen=True)
class GuardFailure:
    """A guard that does not hold, with the expected and the actual value in words."""

    #: the failed guard
    guard: Guard
    #: the expected value
    expected: str
    #: the actual value
    actual: str
    #: the fix
    advice: str
    #: the kind of the actual value: see `kind_of`
    actual_kind: object = None

    @property
    def expected_kind(self) -> object:
        """The kind that the guard expects; `object` for any kind but None."""
        guard = self.guard
        if guard.kind is GuardKind.NOT_NONE:
            return object
        if guard.kind in (GuardKind.TYPE, GuardKind.TENSOR) and guard.kind.value.cls is not None:
            return guard.kind.value.cls(guard.expected)
        return kind_of(guard.expected)

    @property
    def differs_in_kind(self) -> bool:
        """True if the actual value has another kind."""
        return self.expected_kind is not self.actual_kind

    def __str__(self) -> str:
        return f"{self.guard.subject()}: expected {self.expected}, got {self.actual}"


def kind_of(value: object) -> object:
    """Returns the kind of a value: its class, and for True and False the value itself."""
    return value if isinstance(value, bool) else type(value)


def failures(guards: Sequence[Guard], arguments: Mapping[str, Any], backend: object = None) -> list[GuardFailure]:
    """Lists the guards that the frame's `arguments` (by parameter name) violate, in checking order.

    A guard on an unreachable value (too short a container, a missing key) fails, too. Of several guards on one value,
    or on values read from a failed value, only the first is listed. BACKEND guards are compared with `backend`, and
    skipped if it is None.
    """
    violated: list[GuardFailure] = []
    failed: set[Source] = set()
    context = reader_of(guards, Namespace(arguments))
    for guard in ordered(guards):
        if any(not failed.isdisjoint((source, *source.bases())) for source in guard.sources()):
            continue
        if not _holds(guard, context, arguments, backend):
            failed.add(guard.source)
            violated.append(_failure(guard, arguments, backend))
    return violated


def _holds(guard: Guard, context: Reader, arguments: Mapping[str, Any], backend: object) -> bool:
    if guard.kind is GuardKind.BACKEND:
        return backend is None or bool(backend == guard.expected)
    reader = context.fork()
    text = " and ".join(reader.finished(conjuncts([guard], reader))) or "True"
    return bool(_evaluate(text, reader.names, arguments, missing=False))


def _evaluate(text: str, names: Namespace, arguments: Mapping[str, Any], missing: object) -> Any:
    try:
        return eval(text, dict(names.values), dict(arguments))
    except Exception:  # the value is missing or has another type
        return missing


def _failure(guard: Guard, arguments: Mapping[str, Any], backend: object) -> GuardFailure:
    value, names = backend, Namespace(arguments)
    if not guard.kind.value.ignores_source:
        value = _evaluate(guard.source.expression(names), names, arguments, MISSING)
    advice = guard.advice(value)
    try:
        actual = "nothing there" if value is MISSING else guard.kind.value.actual(guard.expected, value)
    except (AttributeError, TypeError):  # a value of a type that the guard cannot describe
        actual = brief(value)
    return GuardFailure(guard, guard.expectation(), actual, advice, kind_of(value))


Misfits = Sequence[Sequence[GuardFailure]]


@record(frozen=True)
class Recompile:
    """A recompile of a frame."""

    #: the function's name
    name: str
    #: the number of the new version
    version: int
    #: the first failed guard of the nearest version; None if a value changed during the check, and no guard fails any
    #: more
    difference: GuardFailure | None
    #: the number of further failed guards of the nearest version
    more: int
    #: the number of versions with more failed guards
    others: int

    def diagnostic(self) -> Diagnostic:
        """Builds the message for the user: the difference, the user's line that needs the guard, and advice."""
        what = f"recompiled {self.name} (version {self.version}): {self.difference or 'nothing differs any more'}"
        folded = [counted(self.more, "more difference")] if self.more else []
        folded += [f"{counted(self.others, 'older version')} fitted less"] if self.others else []
        if self.difference is None:
            return Diagnostic("MD301", what, why=", ".join(folded))
        guard = self.difference.guard
        return Diagnostic("MD301", what, why=", ".join(folded), fix=self.difference.advice, where=guard.where)


def explain(name: str, misfits: Misfits, *, varies: bool = True) -> Recompile:
    """Builds the record of a recompile from the failed guards of each existing version. `varies`: whether the function
    is compiled for sizes and numbers that vary."""
    nearest = min(reversed(misfits), key=len)  # the latest of equally near versions
    difference = nearest[0] if nearest else None
    if difference is not None and difference.advice in (SIZES_VARY, NUMBERS_VARY) and not varies:
        difference = replace(difference, advice="With dynamic=False each value has a version: leave dynamic= out.")
    return Recompile(name, len(misfits) + 1, difference, max(0, len(nearest) - 1), len(misfits) - 1)


def is_for_another_module(failures: Sequence[GuardFailure]) -> bool:
    """Returns whether a version is for a module of another class: classes that share a method do not share its
    limit.
    """
    return any(
        failure.guard.kind is GuardKind.TYPE
        and isinstance(failure.guard.source, Local)
        and issubclass(failure.guard.expected, torch.nn.Module)
        for failure in failures
    )


def refusal(name: str, misfits: Misfits) -> Diagnostic:
    """Builds the message for a call that needs a compile while compiling is forbidden."""
    what = f'{name} would have to be compiled, and the stance is "fail_on_recompile"'
    fix = 'Make all kinds of call once before set_stance("fail_on_recompile").'
    if not misfits:
        return Diagnostic("MD304", what, why="No call of it was compiled under these settings.", fix=fix)
    missed = explain(name, misfits)
    message = missed.diagnostic()
    differs = f"The nearest version differs: {missed.difference or 'no more'}."
    return Diagnostic(
        "MD304", what, "\n".join(filter(None, (differs, message.why, message.fix))), fix, where=message.where
    )


def differs_from_frozen(name: str, failures: Sequence[GuardFailure]) -> Diagnostic:
    """Builds the message for a call that fits no version of a frozen function."""
    what = f"{name} is frozen, and this call differs: {failures[0] if failures else 'an object it needs has died'}"
    fix = "Call the original function, which compiles new versions, or freeze it again."
    why = f"and {counted(len(failures) - 1, 'more difference')}" if len(failures) > 1 else ""
    return Diagnostic("MD305", what, why=why, fix=fix, where=failures[0].guard.where if failures else None)


def limit_reached(
    name: str, versions: int, limit: int, recompiles: Iterable[Recompile], *, runs_eagerly: bool = True
) -> Diagnostic:
    """Builds the message for a function at its recompile limit: the most frequent changes, and a fix for each.

    Calls that fit no version run eagerly, or raise this message.
    """
    differences = [r.difference for r in recompiles if r.difference is not None]
    counts = Counter((d.guard.subject(), d.guard.kind) for d in differences)
    rows = []
    for (changed, _), count in counts.most_common(_MOST_CAUSES):
        last = next(d for d in reversed(differences) if d.guard.subject() == changed)
        rows.append(f"{changed} changed ({counted(count, 'time')}, last from {last.expected} to {last.actual})")
        rows.append(f"    {last.advice}")
    rows += [f"and {counted(len(counts) - _MOST_CAUSES, 'other cause')}"] * (len(counts) > _MOST_CAUSES)
    existing = f"{counted(versions, 'version')} exist{'s' * (versions == 1)}"
    return Diagnostic(
        "MD302",
        f"stopped compiling `{name}`: {existing} (recompile_limit={limit})",
        why="\n".join([*rows, "Calls that fit no version run eagerly."][: None if runs_eagerly else -1]),
        fix="Change the calls, or raise recompile_limit= if all versions are needed. f.why() lists each reason.",
    )


# A message has at most twelve lines.
_MOST_CAUSES = 3
