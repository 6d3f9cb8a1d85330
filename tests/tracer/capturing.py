"""Owns `capture`: the traced frame of a call, for tests that read guards, graphs and exits instead of results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.tracer.capture.frame import trace_frame
from minidynamo.tracer.records.traced_frame import FrameRequest, TracedFrame


def capture(fn: Callable[..., Any], *args: Any, **options: Any) -> TracedFrame:
    bound = inspect.signature(fn).bind(*args)
    bound.apply_defaults()
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    return trace_frame(FrameRequest(fn.__code__, fn.__globals__, dict(bound.arguments), cells, **options))


def targets(traced: TracedFrame) -> list[Any]:
    """Returns the targets of the graph's nodes, in order."""
    assert traced.graph is not None
    return [node.target for node in traced.graph.graph.nodes if node.op in ("call_function", "call_method")]


def placeholders(traced: TracedFrame) -> list[str]:
    return [graph_input.source.display() for graph_input in traced.inputs]


def guards_on(traced: TracedFrame, display: str) -> dict[GuardKind, Any]:
    """Returns kind and expected value of the guards on the value with the source `display`."""
    found: list[Guard] = [guard for guard in traced.guards if guard.source.display() == display]
    return {guard.kind: guard.expected for guard in found}
