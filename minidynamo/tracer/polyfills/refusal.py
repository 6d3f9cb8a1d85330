"""Owns `cannot_trace`, by which a polyfill refuses unsupported arguments.

The handler that breaks the graph is not here (`handlers/builtins.py`)."""

from __future__ import annotations

from typing import Any


def cannot_trace(what: str, why: str, fix: str = "") -> Any:
    """Breaks the graph at the call of the polyfill. The tracer handles this function; it never runs while tracing."""
    raise NotImplementedError(f"{what}: {why}")
