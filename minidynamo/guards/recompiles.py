"""Owns the messages for recompiles: the reason why no version of a frame fitted a call, and advice.

Evaluates nothing; `failures.py` finds the failed guards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from minidynamo.errors import Diagnostic, counted
from minidynamo.guards.failures import GuardFailure, subject
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local, Result

Misfits = Sequence[Sequence[GuardFailure]]

_SAME_KEYS = "All keys count where a dict is looped over or compared: keep the same ones, or read single keys."
_ONE_KEY = "With and without this key there is a version each; no more follow."
_SAME_ITEMS = "All items count where a set is looped over or compared: keep the same ones, or test single items."
_SAME_CLASS = "Set attributes of objects and classes up before the first call, and keep them."

_ADVICE: dict[GuardKind, str] = {
    GuardKind.TENSOR: "A size that varies is symbolic from its second value on; 0 and 1 have versions of their own.",
    GuardKind.PRESENT: "With and without this value there is a version each; no more follow.",
    GuardKind.NOT_NONE: "With and without this value there is a version each; no more follow.",
    GuardKind.EQUALS: "Each value has a version: pass few values, or use them outside of the compiled function.",
    GuardKind.IDENTITY: "Pass the same function, class or flag in each call instead of a new one.",
    GuardKind.TYPE: "Pass values of one class, or compile one function per class.",
    GuardKind.LENGTH: "Each length is compiled once where items are read: keep one, or stack them into one tensor.",
    GuardKind.DICT_KEYS: _SAME_KEYS,
    GuardKind.HAS_KEY: _ONE_KEY,
    GuardKind.MISSING_KEY: _ONE_KEY,
    GuardKind.SET_ITEMS: _SAME_ITEMS,
    GuardKind.MISSING_ATTR: _SAME_CLASS,
    GuardKind.NO_INSTANCE_ATTR: _SAME_CLASS,
    GuardKind.SLOT_EMPTY: _SAME_CLASS,
    GuardKind.CLASS_ATTR: _SAME_CLASS,
    GuardKind.CLASS_NAMES: _SAME_CLASS,
    GuardKind.CELL_EMPTY: "Assign the closed-over variable before the first call.",
    GuardKind.UNNOTICED_DEATH: "With and without a finalizer there is a version each; no more follow.",
    GuardKind.SAME_OBJECT: "Pass separate tensors or containers in each call, or the same one in each.",
    GuardKind.DISTINCT_OBJECTS: "Pass separate tensors or containers in each call, or the same one in each.",
    GuardKind.RELATION: "Each side of a condition is compiled once; no more follow.",
    GuardKind.GLOBAL_STATE: "Call it in the same grad mode, autocast, default dtype and number of threads.",
    GuardKind.BACKEND: "Choose the settings before the first call, or with compile(options=...).",
}
_NUMBER = "A number that varies is an input from its second value on, unless the program needs its value."
_ANSWER = "Set the state that it reports before the first call, and keep it."

# For guard kinds that can fail in several respects.
_ADVICE_FOR: dict[tuple[GuardKind, str], str] = {
    (GuardKind.TENSOR, "presence"): "With and without this argument there is a version each; no more follow.",
    (GuardKind.TENSOR, "dtype"): "Each dtype has a version: convert the tensor before the call if one will do.",
    (GuardKind.TENSOR, "device"): "Each device has a version: move the tensor before the call if one will do.",
    (GuardKind.TENSOR, "rank"): "Each number of dimensions has a version: pass tensors of one rank.",
    (GuardKind.TENSOR, "stride"): "Each memory layout has a version: pass x.contiguous() where the layout differs.",
    (GuardKind.TENSOR, "requires_grad"): "Tensors with and without gradient have a version each: pass x.detach() "
    "where no gradient is needed.",
    (GuardKind.LENGTH, "first entries"): "Empty and filled have a version each; no more follow if the number stays.",
    (GuardKind.LENGTH, "entries"): "Each number of entries has a version: keep to one, or read single keys.",
    (GuardKind.LENGTH, "values"): "Each number of values has a version: pass as many in each call.",
    (GuardKind.IDENTITY, "presence"): "With and without this value there is a version each; no more follow.",
    (GuardKind.IDENTITY, "mode"): "train() and eval() have a version each; no more follow.",
    (GuardKind.IDENTITY, "choice"): "Each of its few values has a version; no more follow when all have been seen.",
}


def _advice(failure: GuardFailure) -> str:
    guard = failure.guard
    if guard.kind is GuardKind.EQUALS and isinstance(guard.source, Result):
        return _ANSWER
    if guard.kind is GuardKind.EQUALS and isinstance(guard.expected, int | float | np.number):
        return _NUMBER
    return _ADVICE_FOR.get((guard.kind, failure.aspect), _ADVICE[guard.kind])


@dataclass(frozen=True)
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
        return Diagnostic("MD301", what, why=", ".join(folded), fix=_advice(self.difference), where=guard.where)


def explain(name: str, misfits: Misfits) -> Recompile:
    """Builds the record of a recompile from the failed guards of each existing version."""
    nearest = min(reversed(misfits), key=len)  # the latest of equally near versions
    difference = nearest[0] if nearest else None
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
    counts = Counter((subject(d.guard), d.guard.kind) for d in differences)
    rows = []
    for (changed, _), count in counts.most_common(_MOST_CAUSES):
        last = next(d for d in reversed(differences) if subject(d.guard) == changed)
        rows.append(f"{changed} changed ({counted(count, 'time')}, last from {last.expected} to {last.actual})")
        rows.append(f"    {_advice(last)}")
    rows += [f"and {counted(len(counts) - _MOST_CAUSES, 'other cause')}"] * (len(counts) > _MOST_CAUSES)
    made = f"{counted(versions, 'version')} exist{'s' * (versions == 1)}"
    return Diagnostic(
        "MD302",
        f"stopped compiling `{name}`: {made} (recompile_limit={limit})",
        why="\n".join([*rows, "Calls that fit no version run eagerly."][: None if runs_eagerly else -1]),
        fix="Change the calls, or raise recompile_limit= if all versions are needed. f.why() lists each reason.",
    )


# A message has at most twelve lines.
_MOST_CAUSES = 3
