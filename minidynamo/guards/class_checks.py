"""Owns what checks against abstract classes have answered: other classes may be registered with those at any time.

Which checks a program makes is the tracer's knowledge.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable

ClassQuestion = Callable[[type, tuple[type, ...]], object]


class ClassChecks:
    """The answers that a program takes for granted. Called, it says whether they still hold; it keeps no class alive.

    The interpreter counts registrations, which are rare: only behind one are the questions asked again.
    """

    def __init__(self) -> None:
        self._registrations = abc.get_cache_token()
        self._asked: list[tuple[ClassQuestion, weakref.ref[type], tuple[weakref.ref[type], ...], object]] = []

    def note(self, question: ClassQuestion, cls: type, classes: tuple[type, ...]) -> None:
        """Note what `question(cls, classes)` gives: a number, or a class."""
        answer = question(cls, classes)
        held = weakref.ref(answer) if isinstance(answer, type) else answer
        self._asked.append((question, weakref.ref(cls), tuple(map(weakref.ref, classes)), held))

    def __call__(self) -> bool:
        registrations = abc.get_cache_token()
        if registrations != self._registrations:
            if not all(self._holds(*asked) for asked in self._asked):
                return False
            self._registrations = registrations
        return True

    def _holds(
        self, question: ClassQuestion, cls: weakref.ref[type], classes: tuple[weakref.ref[type], ...], held: object
    ) -> bool:
        one, others = cls(), tuple(each() for each in classes)
        if one is None or None in others:
            return True  # who is gone is not asked about again
        answer = question(one, others)  # type: ignore[arg-type]
        return answer is (held() if isinstance(held, weakref.ref) else held)
