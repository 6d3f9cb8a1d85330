"""Owns the functions that conditions call, and the short texts about values in messages.

Knows no guards; `guard.py` writes the calls. Nothing here runs user code, except the `repr` of constants.
"""

from __future__ import annotations

import abc
import collections
import datetime
import enum
import math
import reprlib
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from minidynamo.core.names import name_of
from minidynamo.guards.tensors import TensorFacts, differences, facts_of

# Classes whose methods read a container without running overrides; the first such class in the MRO is used.
CONTAINERS: tuple[type, ...] = (
    collections.OrderedDict,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
)
# A unique object: `value is not absent` reads the value and is always true.
ABSENT = object()


def same_value(actual: Any, expected: Any) -> bool:
    """Returns whether no program can distinguish two constants: same types at all levels, same values, same signs of
    zeros.
    """
    cls = type(expected)
    if type(actual) is not cls:
        return False
    if issubclass(cls, np.generic):
        return bool(actual.tobytes() == expected.tobytes())
    if issubclass(cls, datetime.datetime | datetime.time | datetime.timezone):  # equal times may have different zones
        return repr(actual) == repr(expected)
    if issubclass(cls, float):
        same_sign = math.copysign(1, actual) == math.copysign(1, expected)
        return (actual == expected and same_sign) or (actual != actual and expected != expected)
    if issubclass(cls, complex):
        return same_value(actual.real, expected.real) and same_value(actual.imag, expected.imag)
    if issubclass(cls, tuple):
        return tuple.__len__(actual) == len(expected) and all(map(same_value, tuple(actual), expected))
    if issubclass(cls, (frozenset, set)):
        return bool(actual == expected and {(type(k), k) for k in actual} == {(type(k), k) for k in expected})
    return bool(actual == expected)


def same_objects(actual: Any, *expected: Any) -> bool:
    """Returns whether an iterable yields exactly these objects, in this order. None is the referent of a weak reference
    whose object has died.
    """
    actual = (*actual,)
    if len(actual) != len(expected):
        return False
    return all(one is other and other is not None for one, other in zip(actual, expected))


def is_empty(cell: Any) -> bool:
    """Returns whether a closure cell is empty."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def is_unset(value: object, slot: str) -> bool:
    """Returns whether a slot of the value's class is empty."""
    try:
        object.__getattribute__(value, slot)
    except AttributeError:
        return True
    return False


def class_attribute(cls: type, name: str) -> object:
    """Looks up `name` in a class and its bases, without running descriptors; raises KeyError."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    raise KeyError(name)


def lacks_attribute(cls: type, name: str) -> bool:
    """Returns whether neither the class nor its bases have the attribute `name`."""
    return all(name not in base.__dict__ for base in cls.__mro__)


def is_singleton(value: object) -> bool:
    """Returns whether `value` is a singleton of Python, which lives forever."""
    return value is None or value is True or value is False or value is ...


def is_exact_literal(value: object) -> bool:
    """Returns whether an equal value of the same class is always the same number or text."""
    if type(value) is float:
        return value != 0 and math.isfinite(value)  # zeros have signs, NaN equals nothing
    return type(value) in (int, str, bytes)


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


_CONSTANTS = (int, float, complex, bool, str, bytes, range, type(None), torch.dtype, torch.device, torch.Size)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_DESCRIBED = (torch.Tensor, type, enum.Enum, types.FunctionType, types.ModuleType, *_BUILT_IN)


def brief(value: object) -> str:
    """Returns a short text for any value: the `repr` of a constant, else the name of its type."""
    cls = type(value)
    if cls in _CONSTANTS or issubclass(cls, np.number | np.bool_):
        return reprlib.repr(value) if cls in (str, bytes) else repr(value)
    plain = (bool, int, type(None))
    if cls is tuple and all(type(item) in plain for item in value):  # type: ignore[attr-defined]
        return reprlib.repr(value)
    if cls is slice and all(type(getattr(value, part)) in plain for part in ("start", "stop", "step")):
        return repr(value)
    if cls in (tuple, list, set, frozenset, dict):
        return f"{cls.__name__} of {len(value)}"  # type: ignore[arg-type]
    if not issubclass(cls, _DESCRIBED):  # `isinstance` would read `__class__` of the object, which may run user code
        return f"{cls.__name__} object"
    if isinstance(value, torch.Tensor):
        return facts_of(value).summary
    if isinstance(value, type):
        return f"class {value.__qualname__}"
    if isinstance(value, enum.Enum):
        return str(value) if cls.__str__ is enum.Enum.__str__ else f"{cls.__qualname__}.{value.name}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__qualname__}"
    return f"{'module' if isinstance(value, types.ModuleType) else 'function'} {name_of(value)}"


# The most keys of a dict that a message lists.
_MOST_KEYS = 12


def brief_list(keys: Iterable[object], *, sort: bool = False) -> str:
    """Lists the first keys, and counts the rest; "none" without keys."""
    texts = sorted(map(repr, keys)) if sort else [*map(repr, keys)]
    more = [f"and {len(texts) - _MOST_KEYS} more"] if len(texts) > _MOST_KEYS else []
    return ", ".join([*texts[:_MOST_KEYS], *more]) or "none"


def brief_difference(facts: TensorFacts, actual: Any) -> str:
    """Describes a value that lacks some of the facts; names the facts that a summary does not show."""
    if not issubclass(type(actual), torch.Tensor):
        return "None" if actual is None else f"{type(actual).__name__} {brief(actual)}"
    actual_facts = facts_of(actual)
    alike = replace(actual_facts, stride=facts.stride, requires_grad=facts.requires_grad)
    if actual_facts.cls is facts.cls and differences(facts, alike):
        return actual_facts.summary
    pairs = ((name, getattr(actual_facts, name), getattr(facts, name)) for name in differences(facts, actual_facts))
    details = ", ".join(f"{name} {_text_of(one)}, not {_text_of(other)}" for name, one, other in pairs)
    return (
        f"{actual_facts.summary} with {details}"
        if details
        else f"{actual_facts.summary} in another inference or autocast state"
    )


def _text_of(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else str(value)
