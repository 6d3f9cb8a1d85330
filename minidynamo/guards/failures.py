"""Owns the texts about guards: which guard failed, the expected and the actual value, and the list of all guards.

Slow and thorough; `check.py` writes the fast text. Neither runs user code, except the `repr` of constants.
"""

from __future__ import annotations

import enum
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from minidynamo.core.names import Namespace, name_of
from minidynamo.guards.check import conjuncts, ordered
from minidynamo.guards.deaths import Lost
from minidynamo.guards.guard import GlobalState, Guard, GuardKind, TensorFacts
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import InstanceAttr, Local, Source
from minidynamo.guards.state import differences
from minidynamo.guards.tensors import differences as differing
from minidynamo.guards.tensors import facts_of
from minidynamo.guards.writers import class_attribute


@dataclass(frozen=True)
class GuardFailure:
    """A guard that does not hold, with the expected and the actual value in words."""

    #: the failed guard
    guard: Guard
    #: the expected value
    expected: str
    #: the actual value
    actual: str
    #: the respect in which the values differ, for kinds with several; selects the advice
    aspect: str = ""

    def __str__(self) -> str:
        return f"{subject(self.guard)}: expected {self.expected}, got {self.actual}"


def failures(guards: Sequence[Guard], arguments: Mapping[str, Any], backend: object = None) -> list[GuardFailure]:
    """Lists the guards that the frame's `arguments` (by parameter name) violate, in checking order.

    A guard on an unreachable value (too short a container, a missing key) fails, too. Of several guards on one value,
    or on values read from a failed value, only the first is listed. BACKEND guards are compared with `backend`, and
    skipped if it is None.
    """
    found: list[GuardFailure] = []
    failed: set[Source] = set()
    context = Reader(guards, Namespace(arguments))
    for guard in ordered(guards):
        if any(not failed.isdisjoint((source, *source.bases())) for source in _read_by(guard)):
            continue
        if not _holds(guard, context, arguments, backend):
            failed.add(guard.source)
            actual, aspect = _actual(guard, arguments, backend)
            found.append(GuardFailure(guard, expectation(guard), actual, aspect))
    return found


def _read_by(guard: Guard) -> tuple[Source, ...]:
    """Returns the sources that a guard reads."""
    if guard.kind is GuardKind.SAME_OBJECT:
        return (guard.source, guard.expected)
    return (guard.source, *guard.expected) if guard.kind is GuardKind.DISTINCT_OBJECTS else (guard.source,)


def describe(guards: Sequence[Guard]) -> str:
    """Lists the guards, one per line: subject, expectation, and the user's line that needs the guard."""
    lines: dict[str, None] = {}
    for guard in ordered(guards):
        text = f"{subject(guard)}: {expectation(guard)}"
        lines[f"{text:<70}  # {guard.where}" if guard.where else text] = None
    return "\n".join(lines)


def subject(guard: Guard) -> str:
    """Names the subject of the guard, such as ``tensor `x` ``."""
    if guard.kind in (GuardKind.GLOBAL_STATE, GuardKind.BACKEND):
        return str(guard.kind.value)
    if guard.kind is GuardKind.RELATION:
        return f"relation `{guard.source.display()}`"
    return f"{_SUBJECTS.get(guard.kind, guard.kind.value)} `{guard.source.display()}`"


def expectation(guard: Guard) -> str:
    """Describes the expected value."""
    return _EXPECTED.get(guard.kind, brief)(guard.expected)


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


def _some(keys: Iterable[object], *, sort: bool = False) -> str:
    """Lists the first keys, and counts the rest."""
    texts = sorted(map(repr, keys)) if sort else [*map(repr, keys)]
    more = [f"and {len(texts) - _MOST_KEYS} more"] if len(texts) > _MOST_KEYS else []
    return ", ".join([*texts[:_MOST_KEYS], *more])


_CONSTANTS = (int, float, complex, bool, str, bytes, range, type(None), torch.dtype, torch.device, torch.Size)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_DESCRIBED = (torch.Tensor, type, enum.Enum, types.FunctionType, types.ModuleType, *_BUILT_IN)


def _unnoticed(keys: tuple[object, ...] | None) -> str:
    if keys == (Lost.NO_HISTORY,):
        return "an autograd history that a result keeps alive"
    if keys == (Lost.HELD,):
        return "a value that outlives the other values"
    if keys is None or (keys and isinstance(keys[0], Lost)):
        dying = "it dies"
    else:
        dying = f"the value at {keys[0]!r} dies" if keys else "its contents die"
    return f"no finalizer to run when {dying}"


def _settings(state: GlobalState | None) -> str:
    """Describes the interpreter-wide settings; the unusual settings only where they are on."""
    if state is None:
        return "the settings it was compiled under"
    words = [f"grad mode {'on' if state.grad_enabled else 'off'}"]
    words += ["inference mode"] * state.inference_mode
    words += [f"autocast to {dtype} on {device}" for device, _, dtype in state.autocast]
    words.append(f"default {state.default_dtype} on {state.default_device}")
    words += ["deterministic algorithms"] * state.deterministic
    return ", ".join(words)


def _tensor(facts: TensorFacts) -> str:
    return facts.summary


_SUBJECTS: dict[GuardKind, str] = {
    GuardKind.PRESENT: "value of",
    GuardKind.NOT_NONE: "value of",
    GuardKind.TYPE: "type of",
    GuardKind.IDENTITY: "object",
    GuardKind.EQUALS: "value of",
    GuardKind.LENGTH: "length of",
    GuardKind.DICT_KEYS: "keys of",
    GuardKind.HAS_KEY: "keys of",
    GuardKind.MISSING_KEY: "keys of",
    GuardKind.SET_ITEMS: "items of",
    GuardKind.MISSING_ATTR: "attributes of",
    GuardKind.NO_INSTANCE_ATTR: "attributes of",
    GuardKind.SLOT_EMPTY: "attributes of",
    GuardKind.CLASS_ATTR: "class attributes of",
    GuardKind.CLASS_NAMES: "names in class",
    GuardKind.CELL_EMPTY: "variable",
    GuardKind.UNNOTICED_DEATH: "end of",
    GuardKind.SAME_OBJECT: "object",
    GuardKind.DISTINCT_OBJECTS: "object",
}


_EXPECTED: dict[GuardKind, Callable[[Any], str]] = {
    GuardKind.PRESENT: lambda _: "any",
    GuardKind.NOT_NONE: lambda _: "any but None",
    GuardKind.TYPE: lambda cls: str(cls.__qualname__),
    GuardKind.TENSOR: _tensor,
    GuardKind.DICT_KEYS: lambda keys: _some(keys) or "none",
    GuardKind.HAS_KEY: lambda key: f"{key!r} among them",
    GuardKind.MISSING_KEY: lambda key: f"{key!r} not among them",
    GuardKind.SET_ITEMS: lambda items: _some(items, sort=True) or "none",
    GuardKind.MISSING_ATTR: lambda name: f"no `{name}`",
    GuardKind.NO_INSTANCE_ATTR: lambda name: f"`{name}` from the class, not from the instance",
    GuardKind.SLOT_EMPTY: lambda name: f"no `{name}`",
    GuardKind.CLASS_ATTR: lambda pair: f"`{pair[0]}` to be {brief(pair[1])}",
    GuardKind.CLASS_NAMES: lambda made_of: f"the {len(made_of[0])} it had",
    GuardKind.CELL_EMPTY: lambda _: "no value yet",
    GuardKind.UNNOTICED_DEATH: _unnoticed,
    GuardKind.SAME_OBJECT: lambda other: f"the same object as `{other.display()}`",
    GuardKind.DISTINCT_OBJECTS: lambda others: f"another object than {', '.join(f'`{o.display()}`' for o in others)}",
    GuardKind.GLOBAL_STATE: _settings,
    GuardKind.RELATION: lambda answer: "to hold" if answer else "not to hold",
    GuardKind.BACKEND: str,
}


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


_MISSING = object()


def _actual(guard: Guard, arguments: Mapping[str, Any], backend: object) -> tuple[str, str]:
    """Returns the actual value, in words, and the respect in which it differs."""
    if guard.kind is GuardKind.BACKEND:
        return str(backend), ""
    if guard.kind is GuardKind.GLOBAL_STATE:
        return differences(guard.expected), ""
    names = Namespace(arguments)
    found = _evaluate(guard.source.expression(names), names, arguments, _MISSING)
    if found is _MISSING:
        return "nothing there", ""
    try:
        return _ACTUAL.get(guard.kind, lambda _, value: brief(value))(guard.expected, found), _aspect(guard, found)
    except (AttributeError, TypeError):  # a value of a type that the guard cannot describe
        return brief(found), ""


def _aspect(guard: Guard, found: Any) -> str:
    if (guard.expected is None) is not (found is None) and guard.kind in (GuardKind.IDENTITY, GuardKind.TENSOR):
        return "presence"
    if guard.kind is GuardKind.TENSOR and issubclass(type(found), torch.Tensor):
        facts = facts_of(found)
        names = differing(guard.expected, facts)
        is_rank = "shape" in names and len(facts.shape) != len(guard.expected.shape)
        return "rank" if is_rank else (names or [""])[0]
    if guard.kind is GuardKind.IDENTITY and issubclass(type(guard.expected), (bool, enum.Enum)):
        is_mode = isinstance(guard.source, InstanceAttr) and guard.source.name == "training"
        return "mode" if is_mode else "choice"
    if guard.kind is GuardKind.LENGTH and issubclass(type(found), (dict, set, frozenset)):
        return "first entries" if guard.expected == 0 else "entries"
    if guard.kind is GuardKind.LENGTH and isinstance(guard.source, Local) and issubclass(type(found), tuple):
        return "values"
    return ""


def _actual_tensor(facts: TensorFacts, found: Any) -> str:
    if not issubclass(type(found), torch.Tensor):
        return "None" if found is None else f"{type(found).__name__} {brief(found)}"
    here = facts_of(found)
    if (
        differing(facts, replace(here, stride=facts.stride, requires_grad=facts.requires_grad))
        and here.cls is facts.cls
    ):
        return here.summary
    names = differing(facts, here)
    details = ", ".join(
        f"{name} {_text_of(getattr(here, name))}, not {_text_of(getattr(facts, name))}" for name in names
    )
    return f"{here.summary} with {details}" if details else f"{here.summary} in another inference or autocast state"


def _text_of(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else str(value)


def _actual_attribute(name: str, found: Any) -> str:
    return f"`{name}` in the instance" if name in found.__dict__ else f"`{name}` in the class"


def _changed_names(names: Sequence[str], found: Mapping[str, Any]) -> str:
    added, lost = (", ".join(f"`{name}`" for name in a if name not in b) for a, b in ((found, names), (names, found)))
    words = [f"{added} in addition"] * bool(added) + [f"{lost} missing"] * bool(lost)
    return ", ".join(words) or "another order, or other bases"


def _actual_class_attribute(pair: tuple[str, object], cls: Any) -> str:
    try:
        return f"{brief(class_attribute(cls, pair[0]))}{' (another object)' if callable(pair[1]) else ''}"
    except KeyError:
        return "no such attribute"


_ACTUAL: dict[GuardKind, Callable[[Any, Any], str]] = {
    GuardKind.TYPE: lambda _, found: str(type(found).__qualname__),
    GuardKind.EQUALS: lambda expected, found: (
        brief(found) if type(found) is type(expected) else f"{type(found).__name__} {brief(found)}"
    ),
    GuardKind.IDENTITY: lambda expected, found: (
        f"another {brief(found)}" if brief(found) == brief(expected) else brief(found)
    ),
    GuardKind.TENSOR: _actual_tensor,
    GuardKind.LENGTH: lambda _, found: str(len(found)),
    GuardKind.DICT_KEYS: lambda _, found: _some(found) or "none",
    GuardKind.HAS_KEY: lambda _, found: _some(found) or "none",
    GuardKind.MISSING_KEY: lambda key, found: repr(key) + (f" and {len(found) - 1} more" if len(found) > 1 else ""),
    GuardKind.SET_ITEMS: lambda _, found: _some(found, sort=True) or "none",
    GuardKind.MISSING_ATTR: _actual_attribute,
    GuardKind.NO_INSTANCE_ATTR: _actual_attribute,
    GuardKind.SLOT_EMPTY: lambda name, found: f"`{name}` = {brief(object.__getattribute__(found, name))}",
    GuardKind.CLASS_ATTR: _actual_class_attribute,
    GuardKind.CLASS_NAMES: lambda made_of, cls: _changed_names(made_of[0], cls.__dict__),
    GuardKind.CELL_EMPTY: lambda _, cell: brief(cell.cell_contents),
    GuardKind.UNNOTICED_DEATH: lambda _, found: "a finalizer",
    GuardKind.SAME_OBJECT: lambda _, found: "another object",
    GuardKind.DISTINCT_OBJECTS: lambda _, found: "the same object",
    GuardKind.RELATION: lambda _, found: "that it holds" if found else "that it does not hold",
}
