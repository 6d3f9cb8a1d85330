"""Owns every question about the running Python: its version, and what differs between versions.

How instructions differ is known in `bytecode/` and `tracer/opcodes/`, which ask here for the version alone.
"""

from __future__ import annotations

import sys
import types
import typing

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)

# For programs that ask: a tuple with names, like those that torch returns.
VERSION_INFO = sys.version_info

_CO_HAS_DOCSTRING = 0x4000000


def name_in_errors(cls: type) -> str:
    """What Python calls a class in its messages: those written in C go by their module, too (`collections.deque`)."""
    return repr(super(cls)).removeprefix("<super: <class '").partition("'>")[0]


def docstring(code: types.CodeType) -> str | None:
    """The docstring of a function with this code: its first constant; 3.14 says in a flag whether it has one."""
    first = code.co_consts[0] if code.co_consts else None
    has_docstring = bool(code.co_flags & _CO_HAS_DOCSTRING) if PY314 else True
    return first if has_docstring and isinstance(first, str) else None


def protocol_members(protocol: type) -> tuple[str, ...]:
    """The names of what a `typing.Protocol` class asks for, sorted."""
    names = getattr(protocol, "__protocol_attrs__", None)  # Python 3.12 and later
    return tuple(sorted(typing._get_protocol_attrs(protocol) if names is None else names))
