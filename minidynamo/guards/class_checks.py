"""Owns the recorded answers of checks against abstract classes, with which classes can be registered at any time.

The tracer decides which checks a program makes.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any

ClassQuestion = Callable[[type, tuple[type, ...]], object]


class ClassChecks:
    """The recorded answers that a program depends on. A call returns whether all still hold. Keeps no class alive.

    The interpreter counts registrations, which are rare: questions are asked again only after a registration.
    """

    def __init__(self) -> None:
        self._registrations = abc.get_cache_token()
        # Abstract classes hash their subjects, so weak references to classes are safe keys.
        self._answers: dict[tuple[ClassQuestion, weakref.ref[type], tuple[weakref.ref[type], ...]], object] = {}

    def ask(self, question: ClassQuestion, cls: type, classes: tuple[type, ...]) -> Any:
        """Returns and records `question(cls, classes)`, a number or a class."""
        answer = question(cls, classes)
        expected = weakref.ref(answer) if isinstance(answer, type) else answer
        self._answers[question, weakref.ref(cls), tuple(map(weakref.ref, classes))] = expected
        return answer

    def __call__(self) -> bool:
        registrations = abc.get_cache_token()
        if registrations != self._registrations:
            if not all(self._holds(*question_key, expected) for question_key, expected in self._answers.items()):
                return False
            self._registrations = registrations
        return True

    def _holds(
        self, question: ClassQuestion, cls: weakref.ref[type], classes: tuple[weakref.ref[type], ...], expected: object
    ) -> bool:
        subject, abstract_classes = cls(), tuple(each() for each in classes)
        if subject is None or None in abstract_classes:
            return True  # no question can be asked about a dead class
        answer = question(subject, abstract_classes)  # type: ignore[arg-type]
        return answer is (expected() if isinstance(expected, weakref.ref) else expected)
