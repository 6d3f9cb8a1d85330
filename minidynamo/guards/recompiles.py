"""Owns the words for recompiles: why no version of a frame fitted a call, and what to do about it.

It evaluates nothing; `failures.py` finds what does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minidynamo.errors import Diagnostic
from minidynamo.guards.failures import GuardFailure, subject
from minidynamo.guards.guard import GuardKind

Misfits = Sequence[Sequence[GuardFailure]]

_SAME_KEYS = "Keep the same keys or items, or stack the values into one tensor."
_SAME_CLASS = "Set attributes of objects and classes up before the first call, and keep them."

_ADVICE: dict[GuardKind, str] = {
    GuardKind.TENSOR: "Each dtype, device, shape and layout is compiled once: pad or convert to a few of them.",
    GuardKind.EQUALS: "Each value of a number or text is compiled once: pass what varies as a tensor.",
    GuardKind.IDENTITY: "Pass the same function, class or flag in each call instead of a new one.",
    GuardKind.TYPE: "Pass values of one class, or compile one function per class.",
    GuardKind.LENGTH: "Each length is compiled once: keep it the same, or stack the items into one tensor.",
    GuardKind.DICT_KEYS: _SAME_KEYS,
    GuardKind.HAS_KEY: _SAME_KEYS,
    GuardKind.MISSING_KEY: _SAME_KEYS,
    GuardKind.SET_ITEMS: _SAME_KEYS,
    GuardKind.MISSING_ATTR: _SAME_CLASS,
    GuardKind.NO_INSTANCE_ATTR: _SAME_CLASS,
    GuardKind.SLOT_EMPTY: _SAME_CLASS,
    GuardKind.CLASS_ATTR: _SAME_CLASS,
    GuardKind.CLASS_NAMES: _SAME_CLASS,
    GuardKind.CELL_EMPTY: "Assign the closed-over variable before the first call.",
    GuardKind.SAME_OBJECT: "Pass separate tensors or containers in each call, or the same one in each.",
    GuardKind.DISTINCT_OBJECTS: "Pass separate tensors or containers in each call, or the same one in each.",
    GuardKind.GLOBAL_STATE: "Call it in the same grad mode, autocast, default dtype and number of threads.",
    GuardKind.BACKEND: "Choose the settings before the first call, or with compile(options=...).",
}


@dataclass(frozen=True)
class Recompile:
    """That a frame was compiled once more, as `version`, since `difference` and `more` others kept the nearest one out.

    `others` is the number of versions that fitted less. `difference` is None when nothing differs any more: a value
    changed while the guards were being looked at.
    """

    name: str
    version: int
    difference: GuardFailure | None
    more: int
    others: int

    def diagnostic(self) -> Diagnostic:
        """What the user is told: the difference, the line of theirs that made it matter, and advice."""
        what = f"recompiled {self.name} (version {self.version}): {self.difference or 'nothing differs any more'}"
        folded = [_count(self.more, "more difference")] if self.more else []
        folded += [f"{_count(self.others, 'older version')} fitted less"] if self.others else []
        if self.difference is None:
            return Diagnostic("MD301", what, why=", ".join(folded))
        guard = self.difference.guard
        return Diagnostic("MD301", what, why=", ".join(folded), fix=_ADVICE[guard.kind], where=guard.where)


def explain(name: str, misfits: Misfits) -> Recompile:
    """The record of a recompile, from the guards that failed in each existing version."""
    nearest = min(reversed(misfits), key=len)  # of several the latest
    difference = nearest[0] if nearest else None
    return Recompile(name, len(misfits) + 1, difference, max(0, len(nearest) - 1), len(misfits) - 1)


def ranked_causes(recompiles: Iterable[Recompile]) -> str:
    """What kept versions from being reused, the most frequent first, with counts."""
    counts = Counter(subject(r.difference.guard) for r in recompiles if r.difference is not None)
    return ", ".join(f"{what} ({_count(count, 'time')})" for what, count in counts.most_common())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
