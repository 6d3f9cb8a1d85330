"""Owns the default marks of compiled functions, by which calls that omit an argument are recognized.

Python copies the objects in `f.__defaults__` and `f.__kwdefaults__` into parameters, directly from the memory of the
tuple and the dict. Readers of these attributes see the defaults of the original function. `frontend/frames.py`
generates the handling of a mark.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any


class LeftOut:
    """Replaces the default of a parameter, and so distinguishes calls without the argument from calls with it."""

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter

    def __repr__(self) -> str:
        return f"<default of {self.parameter}>"


class Defaults(tuple[Any, ...]):
    """Contains marks for calls, and shows readers the current defaults of `original`."""

    original: Any  # a function

    @classmethod
    def of(cls, original: types.FunctionType, marks: Sequence[LeftOut]) -> Defaults | None:
        """Builds defaults for a function that replaces `original`; None without marks."""
        marked = cls(marks)
        marked.original = original
        return marked if marks else None

    def shown(self) -> tuple[Any, ...]:
        """Returns the defaults of the original."""
        return self.original.__defaults__ or ()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.shown(),)


class KeywordDefaults(dict[str, Any]):
    """The counterpart of `Defaults` for keyword-only parameters. Written values replace marks."""

    original: Any  # a function

    @classmethod
    def of(cls, original: types.FunctionType, marks: Mapping[str, LeftOut]) -> KeywordDefaults | None:
        """Builds defaults for a function that replaces `original`; None without marks."""
        marked = cls(marks)
        marked.original = original
        return marked if marks else None

    def shown(self) -> dict[str, Any]:
        """Returns the defaults of the original, and written values; marks of parameters without a default are left
        out.
        """
        now = self.original.__kwdefaults__ or {}
        written = {name: value for name, value in dict.items(self) if type(value) is not LeftOut}
        return {name: now[name] for name in dict.keys(self) if name in now} | written

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.shown(),)


def _show(cls: type[Any], plain: type, names: str) -> None:
    """Redirects the named methods of `cls` to the same methods of class `plain`, on the shown value."""

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


def follow_original(defaults: tuple[Any, ...] | dict[str, Any] | None) -> bool:
    """Returns whether all defaults of a compiled function are marks, so that the original's defaults apply."""
    held = dict.values(defaults) if isinstance(defaults, dict) else tuple.__iter__(defaults or ())
    return all(type(default) is LeftOut for default in held)
