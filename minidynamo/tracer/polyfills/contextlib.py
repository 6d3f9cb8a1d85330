"""Owns the polyfills of contextlib: exits of `with` blocks that read the present exception through `sys`.

The rest of contextlib is traced directly. The polyfill for @contextmanager functions is not here
(`tracer/frames/generators.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import contextlib

from minidynamo.tracer.polyfills.refusal import cannot_trace
from minidynamo.tracer.records.registry import polyfill


@polyfill(contextlib.ExitStack.__exit__)
def leave_stack(self, kind, error, traceback):
    details = (kind, error, traceback)
    raised, suppressed = False, False
    while self._exit_callbacks:
        _, callback = self._exit_callbacks.pop()
        try:
            if callback(*details):
                raised, suppressed = False, True
                details = (None, None, None)
        except BaseException as other:
            if raised or suppressed:
                return cannot_trace("an ExitStack with several errors", "it chains them in an order of its own")
            raised = True
            details = (type(other), other, other.__traceback__)
    if raised:
        raise details[1]
    return error is not None and suppressed
