"""Owns the defaults of compiled functions: marks by which a call is told that leaves an argument out.

Python puts the objects in `f.__defaults__` and `f.__kwdefaults__` into the parameters; it takes them from the storage
of a tuple and a dict. Who reads these attributes finds the defaults of the function that is compiled. What the
generated function makes of a mark is in `frontend/frames.py`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any


class LeftOut:
    """Stands for the default of a parameter: a call that leaves the argument out is told from one that gives it."""

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter

    def __repr__(self) -> str:
        return f"<default of {self.parameter}>"


class Defaults(tuple[Any, ...]):
    """Holds marks for calls, and shows the defaults that `original` has now."""

    original: Any  # a function

    @classmethod
    def of(cls, original: types.FunctionType, marks: Sequence[LeftOut]) -> Defaults | None:
        """Such defaults for a function that is to stand for `original`; None without marks."""
        made = cls(marks)
        made.original = original
        return made if marks else None

    def shown(self) -> tuple[Any, ...]:
        """The defaults that are meant."""
        return self.original.__defaults__ or ()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.shown(),)


class KeywordDefaults(dict[str, Any]):
    """`Defaults` of parameters that have to be named. What is written to it counts in its place."""

    original: Any  # a function

    @classmethod
    def of(cls, original: types.FunctionType, marks: Mapping[str, LeftOut]) -> KeywordDefaults | None:
        """Such defaults for a function that is to stand for `original`; None without marks."""
        made = cls(marks)
        made.original = original
        return made if marks else None

    def shown(self) -> dict[str, Any]:
        """The defaults that are meant: a mark stands for nothing where the original has none any more."""
        now = self.original.__kwdefaults__ or {}
        written = {name: value for name, value in dict.items(self) if type(value) is not LeftOut}
        return {name: now[name] for name in dict.keys(self) if name in now} | written

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.shown(),)


def _show(cls: type[Any], plain: type, names: str) -> None:
    """Let these methods of `cls` answer for what is shown, as those of the plain class do."""

    def method(name: str) -> Any:
        answer = getattr(plain, name)
        return lambda self, *args: answer(self.shown(), *args)

    for name in names.split():
        setattr(cls, name, method(name))


_show(Defaults, tuple, "__iter__ __len__ __getitem__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__")
_show(Defaults, tuple, "__repr__ __add__ __mul__ __rmul__ index count")
_show(
    KeywordDefaults,
    dict,
    "__iter__ __len__ __getitem__ __contains__ __eq__ __ne__ __repr__ __or__ __ror__ __reversed__",
)
_show(KeywordDefaults, dict, "get keys values items copy")


def are_followed(defaults: tuple[Any, ...] | dict[str, Any] | None) -> bool:
    """Whether these defaults of a compiled function stand for those of the function that it follows."""
    held = dict.values(defaults) if isinstance(defaults, dict) else tuple.__iter__(defaults or ())
    return all(type(default) is LeftOut for default in held)
