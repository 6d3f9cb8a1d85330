"""Owns the functions with which a program steers its own capture, and the marks they leave on functions.

Called outside of a compile they do what their names say at run time, or nothing; the tracer recognises them and acts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

DISABLED = "__minidynamo_disabled__"
IN_GRAPH = "__minidynamo_in_graph__"
COMPILED = "__minidynamo__"


def is_compiling() -> bool:
    """True while minidynamo captures the calling code, False when it runs as written."""
    return False


def graph_break(message: str = "") -> None:
    """Cut the graph here. `message` appears in reports. Does nothing when the code runs as written."""


def disable(fn: F | None = None, *, reason: str = "") -> F | Callable[[F], F]:
    """Never capture `fn`: a call to it breaks the graph and runs as written. Also a decorator, bare or with arguments.

    The function itself is left alone; a new one that calls it is returned.
    """
    if fn is None:
        return lambda given: disable(given, reason=reason)  # type: ignore[return-value]

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(disabled, DISABLED, reason or "it is marked with minidynamo.disable")
    return disabled


def allow_in_graph(fn: F) -> F:
    """Put calls of `fn` into the graph as they are, without looking inside; returns `fn`.

    `fn` must be a Python function that only computes with tensors and works on fake tensors.
    """
    setattr(fn, IN_GRAPH, True)
    return fn
