"""Owns `cannot_trace`, with which a twin refuses what it cannot do.

The handler that breaks the graph there is in `handlers/builtins.py`.
"""

from __future__ import annotations

from typing import Any


def cannot_trace(what: str, why: str, fix: str = "") -> Any:
    """Break the graph at the call of the twin. The tracer handles this function; it never runs while tracing."""
    raise NotImplementedError(f"{what}: {why}")
