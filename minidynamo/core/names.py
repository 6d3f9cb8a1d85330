"""Owns names of objects without a literal form, for generated Python.

Prints nothing; writers ask for identifiers, and pass the values to the generated code as globals.
"""

from __future__ import annotations

import builtins
import keyword
import re
import types
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from minidynamo.core.references import Reference


def is_weakly_referable(value: object) -> bool:
    """Returns whether `value` can be referred to weakly."""
    return bool(type(value).__weakrefoffset__)


def weakly(method: Any) -> Callable[..., Any]:
    """Returns a function that calls `method` without keeping its object alive, which owns the generated code."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        return reference()(*args, **kwargs)  # type: ignore[misc]

    return call


def with_globals(function: types.FunctionType, others: Mapping[int, object]) -> types.FunctionType:
    """Returns a copy of a function whose globals name other objects: `others` maps the id of an object to the object
    to name instead.
    """
    namespace = {name: others.get(id(value), value) for name, value in function.__globals__.items()}
    copy = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    copy.__dict__.update(function.__dict__)
    return copy


# Objects that know their own name and module without running user code.
_NAMED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ModuleType,
)


def name_of(value: object) -> str:
    """Returns the name of a class, function or module; for other objects, the name of the class."""
    name = getattr(value, "__name__", None) if issubclass(type(value), _NAMED) else None
    return name if isinstance(name, str) else type(value).__name__


def module_of(value: object) -> str:
    """Returns the name of the module that a class, function or module belongs to; empty for other objects."""
    if issubclass(type(value), types.ModuleType):
        return name_of(value)
    module = getattr(value, "__module__", None) if issubclass(type(value), _NAMED) else None
    return module if isinstance(module, str) else ""


def identifier(text: str, default: str = "value") -> str:
    """Returns a name similar to `text` that generated Python can contain: Python's parser leaves it unchanged.

    `default` replaces a name without any letter or digit. A name may begin with a digit; a keyword gets an underscore.
    """
    normal = unicodedata.normalize("NFKC", re.sub(r"\W+", "_", text))
    stem = "".join(letter if f"_{letter}".isidentifier() else "_" for letter in normal).strip("_") or default
    return f"{stem}_" if keyword.iskeyword(stem) else stem


class Namespace:
    """Identifiers for objects: one name per object, none of `reserved`. `suffix` ends every name.

    `values` maps each name to its object (or weak reference); it becomes the globals of the generated code.
    """

    def __init__(self, reserved: Iterable[str] = (), suffix: str = "") -> None:
        self.values: dict[str, Any] = {}
        self._suffix = suffix
        self._reserved = frozenset(reserved)
        self._taken = {*self._reserved, *vars(builtins), *keyword.kwlist}
        self._names: dict[tuple[int, bool], str] = {}
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """Returns an unused identifier similar to `hint`, without binding it."""
        stem = (re.sub(r"\W+", "_", hint, flags=re.ASCII).strip("_") or "value") + self._suffix
        if stem[0].isdigit():
            stem = "_" + stem
        name, count = stem, self._counts.get(stem, 0)
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._counts[stem] = count
        self._taken.add(name)
        return name

    def constant(self, value: object, hint: str) -> str:
        """Returns the name of `value`, which lives as long as the generated code. Builtins keep their own name."""
        if hint not in self._reserved and vars(builtins).get(hint, self) is value:
            return hint
        key = (id(value), False)
        if key not in self._names:
            self._names[key] = name = self.fresh(hint)
            self.values[name] = value
        return self._names[key]

    def weak(self, value: object, hint: str) -> str | None:
        """Returns the name of a weak reference to `value`; None if its type allows none."""
        key = (id(value), True)
        if key not in self._names:
            if not is_weakly_referable(value):
                return None
            name = self.fresh(f"{hint}_ref")
            self.values[name] = Reference(value)
            self._names[key] = name
        return self._names[key]

    def watched(self) -> tuple[weakref.ref[Any], ...]:
        """Returns the weak references among the values."""
        return tuple(value for value in self.values.values() if issubclass(type(value), weakref.ref))
