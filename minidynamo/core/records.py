"""Owns `record`, a dataclass whose class is made in a third of the time.

`dataclasses.dataclass` writes up to six methods as text and compiles each: half of the time of `import minidynamo`, and
a fifth of a second of a first training step. A record has only its `__init__` from there; its other methods are shared
functions. A class with a field for a function keeps `dataclass`: the type checker would take the function for a method.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T]) -> type[T]: ...
@overload
def record(*, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(dataclasses.field,))
def record(cls: Any = None, *, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
    """Makes a class a dataclass, with the parameters of `dataclasses.dataclass`.

    `frozen=True` gives the class a hash. The type checker rejects assignments to its fields; nothing does at run time.
    """

    def make(cls: type[T]) -> type[T]:
        own = vars(cls).copy()
        dataclasses.dataclass(repr=False, eq=False, kw_only=kw_only)(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        methods: dict[str, Any] = {"__repr__": _representation([field.name for field in fields if field.repr])}
        if eq:
            key = _key([field.name for field in fields if field.compare])
            methods |= {"__eq__": _equality(key), "__hash__": _hash(key) if frozen else None}
        for name, method in methods.items():
            if own.get(name) is None:  # a class with an own `__eq__` and no hash has the hash None
                setattr(cls, name, method)
        return cls

    return make if cls is None else make(cls)


def _key(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function from an object to the tuple of its attributes `names`."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _representation(names: Sequence[str]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _equality(key: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return key(self) == key(other)

    return __eq__


def _hash(key: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(key(self))

    return __hash__
