"""Owns the settings of hypothesis for random programs, and the list of minidynamo's own failures in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck

from minidynamo.core.events import on_event

RANDOM: dict[str, Any] = {
    "deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck), "database": None,
}  # fmt: skip


@contextlib.contextmanager
def own_failures() -> Iterator[list[str]]:
    """Collects failures of minidynamo, not of the program."""
    found: list[str] = []

    def note(event: Any) -> None:
        diagnostic = event.data.get("diagnostic")
        if diagnostic is not None and diagnostic.code in {"MD260", "MD299", "MD405"}:
            found.append(diagnostic.render())

    unsubscribe = on_event(note)
    try:
        yield found
    finally:
        unsubscribe()
