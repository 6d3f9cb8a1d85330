"""Owns what checks against abstract classes have answered: other classes may be registered with those at any time.

Which checks a program makes is the tracer's knowledge.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any

ClassQuestion = Callable[[type, tuple[type, ...]], object]


class ClassChecks:
    """The answers that a program takes for granted. Called, it says whether they still hold; it keeps no class alive.

    The interpreter counts registrations, which are rare: only behind one are the questions asked again.
    """

    def __init__(self) -> None:
        self._registrations = abc.get_cache_token()
        # Abstract classes hash what they are asked about, too.
        self._answers: dict[tuple[ClassQuestion, weakref.ref[type], tuple[weakref.ref[type], ...]], object] = {}

    def ask(self, question: ClassQuestion, cls: type, classes: tuple[type, ...]) -> Any:
        """What `question(cls, classes)` gives, a number or a class, which is noted."""
        answer = question(cls, classes)
        held = weakref.ref(answer) if isinstance(answer, type) else answer
        self._answers[question, weakref.ref(cls), tuple(map(weakref.ref, classes))] = held
        return answer

    def __call__(self) -> bool:
        registrations = abc.get_cache_token()
        if registrations != self._registrations:
            if not all(self._holds(*asked, held) for asked, held in self._answers.items()):
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
