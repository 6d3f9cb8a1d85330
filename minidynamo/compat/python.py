"""Owns every question about the running Python: its version, and differences between versions.

`bytecode/` and `tracer/opcodes/` know the differences of instructions, and ask here only for the version.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import typing
import warnings

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)

# The class of functions with a cache, which is written in C.
CACHED_FUNCTION: type = type(functools.lru_cache(int))

# For programs that ask: a named tuple, like those that torch returns.
VERSION_INFO = sys.version_info

# Whether functools flattens a partial object whose class overrides `__call__`; the override is lost.
_overriding = type("", (functools.partial,), {"__call__": print})(print)
FLATTENS_ALL_PARTIALS = functools.partial(_overriding).func is print

_CO_HAS_DOCSTRING = 0x4000000


def warning_writers() -> tuple[object, object]:
    """Returns the functions that show a warning now, which programs and `catch_warnings` replace."""
    return warnings.showwarning, warnings._showwarnmsg_impl


def in_thread(function: typing.Callable[[], object]) -> None:
    """Runs a function in a thread, without user frames, whose locals would otherwise live until garbage collection."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def is_made_at_run_time(cls: type) -> bool:
    """Returns whether a class is created while the program runs: each class written in Python, and some written in C.
    All others are parts of the interpreter or of a library in C."""
    return bool(cls.__flags__ & 1 << 9)


def is_immutable_class(cls: type) -> bool:
    """Returns whether no program can change the attributes of a class, which is then written in C, or the class of an
    instance, unless it is a module.
    """
    return bool(cls.__flags__ & 1 << 8)


def name_in_errors(cls: type) -> str:
    """Returns a class's name in Python's error messages: C classes include their module (`collections.deque`)."""
    return repr(super(cls)).removeprefix("<super: <class '").partition("'>")[0]


def docstring(code: types.CodeType) -> str | None:
    """Returns the docstring of a function with this code: its first constant; 3.14 has a flag for its presence."""
    first = code.co_consts[0] if code.co_consts else None
    has_docstring = bool(code.co_flags & _CO_HAS_DOCSTRING) if PY314 else True
    return first if has_docstring and isinstance(first, str) else None


def protocol_members(protocol: type) -> tuple[str, ...]:
    """Lists the names of the members of a `typing.Protocol` class, sorted."""
    names = getattr(protocol, "__protocol_attrs__", None)  # Python 3.12 and later
    return tuple(sorted(typing._get_protocol_attrs(protocol) if names is None else names))
