"""Owns generators that are made while tracing: suspended frames that go on when the next item is asked for.

`yield from`, `send` and `throw` are not supported, nor is a generator that has started and outlives the graph.
"""

from __future__ import annotations

import contextlib
import types
from dataclasses import dataclass, field

from minidynamo.tracer import registry
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.polyfills import cannot_trace
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable


@dataclass(eq=False)
class GeneratorVariable(VariableTracker):
    """A generator: its frame, and the call that made it, which can be repeated as long as it has not started."""

    frame: Frame
    function: VariableTracker
    args: tuple[VariableTracker, ...] = ()
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)
    started: bool = False

    @property
    def python_type(self) -> type:
        return types.GeneratorType


@registry.advance(GeneratorVariable)
def _advance(tx: Tracer, generator: GeneratorVariable) -> VariableTracker | None:
    generator.started = True
    frame = generator.frame
    if frame.result is not None:
        return None
    frame.push(ConstantVariable(None))  # what `send` would give
    return frame.resume()


@registry.method(types.GeneratorType, "__iter__")
def _iter(tx: Tracer, generator: VariableTracker, /) -> VariableTracker:
    return generator


_DONE = object()


@registry.polyfill(contextlib._GeneratorContextManager.__exit__)
def leave_generator_context(self, typ, value, traceback):  # type: ignore[no-untyped-def]
    """The way out of a `with` block of a @contextmanager function when nothing was raised."""
    if typ is not None:
        return cannot_trace("an exception in a `with` block", "it is thrown into the generator")
    if next(self.gen, _DONE) is not _DONE:
        raise RuntimeError("generator didn't stop")
    return False
