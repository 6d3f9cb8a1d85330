"""Owns the table opcode name -> function, and the list of unsupported opcodes with reasons.

No opcode is implemented here. Together with `UNSUPPORTED` and `NEVER_SEEN` the table covers `dis.opmap` exactly."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., None])

# opcode(frame, instruction); the frame's `next_index` is already the index of the following instruction.
OPCODES: dict[str, Callable[[Any, Any], None]] = {}

_SUSPENDS = "coroutines and asynchronous generators run eagerly"
_GROUPS = "`except*` splits an exception group, which runs eagerly"
_NAMESPACE = "it works on a class or module body, which runs eagerly"

# Instructions that always break the graph -> reason.
UNSUPPORTED = {
    "ASYNC_GEN_WRAP": _SUSPENDS,
    "BEFORE_ASYNC_WITH": _SUSPENDS,
    "CHECK_EG_MATCH": _GROUPS,
    "DELETE_NAME": _NAMESPACE,
    "END_ASYNC_FOR": _SUSPENDS,
    "EXIT_INIT_CHECK": "it only occurs in code that CPython makes for itself",
    "GET_AITER": _SUSPENDS,
    "GET_ANEXT": _SUSPENDS,
    "GET_AWAITABLE": _SUSPENDS,
    "IMPORT_STAR": _NAMESPACE,
    "INTERPRETER_EXIT": "it only occurs in code that CPython makes for itself",
    "LOAD_CLASSDEREF": _NAMESPACE,
    "LOAD_FROM_DICT_OR_DEREF": _NAMESPACE,
    "LOAD_FROM_DICT_OR_GLOBALS": _NAMESPACE,
    "LOAD_LOCALS": _NAMESPACE,
    "LOAD_NAME": _NAMESPACE,
    "PREP_RERAISE_STAR": _GROUPS,
    "PRINT_EXPR": "it only occurs at the interactive prompt",
    "SETUP_ANNOTATIONS": _NAMESPACE,
    "STORE_NAME": _NAMESPACE,
}

# Opcodes that decoded code never contains: inline caches and prefixes are decoded away, pseudo opcodes exist only
# inside the compiler, instrumented opcodes are shown in their plain form.
NEVER_SEEN = {
    "CACHE",
    "EXTENDED_ARG",
    "ENTER_EXECUTOR",
    "RESERVED",
    "INSTRUMENTED_INSTRUCTION",
    "INSTRUMENTED_LINE",
} | {
    name
    for name, number in dis.opmap.items()
    if name.startswith("INSTRUMENTED_") or name in getattr(dis, "_pseudo_ops", {}) or number > 255
}


def opcode(*names: str) -> Callable[[F], F]:
    """Registers the decorated function for these opcodes, each once; opcodes of other Python versions are ignored."""

    def register(function: F) -> F:
        for name in names:
            if name in OPCODES:
                raise ValueError(f"opcode {name} is registered twice")
            if name in dis.opmap and name not in NEVER_SEEN:
                OPCODES[name] = function
        return function

    return register
