"""Owns generators that are made while tracing: suspended frames that go on when the next item is asked for.

The opcodes that suspend a frame are in `opcodes/generators.py`. A generator that outlives the graph is made again: by
its call when it has not started, else as a frame that is entered where it was suspended.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from minidynamo.bytecode.analysis import in_except_handler
from minidynamo.bytecode.breaks import make_suspended
from minidynamo.bytecode.layout import CELL, NULL, VALUE, FramePoint, frame_point
from minidynamo.tracer import registry
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.polyfills import cannot_trace
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.traced_frame import Null
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.contexts import ContextExitVariable


@dataclass(eq=False)
class GeneratorVariable(VariableTracker):
    """A generator: its frame, and the call that made it, which can be repeated as long as it has not started.

    `returned` is the value that the frame returned when the generator was last asked for an item and gave none.
    """

    frame: Frame
    function: VariableTracker
    args: tuple[VariableTracker, ...] = ()
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)
    started: bool = False
    returned: VariableTracker | None = None

    @property
    def python_type(self) -> type:
        return types.GeneratorType

    @property
    def finished(self) -> bool:
        """Whether its frame has come to its end."""
        return self.frame.result is not None


def send(tx: Tracer, generator: GeneratorVariable, value: VariableTracker) -> VariableTracker | None:
    """Go on with `value` as the result of the `yield`: the next item; None when the frame returned."""
    frame = generator.frame
    is_none = isinstance(value, ConstantVariable) and value.value is None
    if generator.finished:
        generator.returned = ConstantVariable(None)
        return None
    if frame in tx.frames:
        tx.raises(ValueError("generator already executing"))
    if not generator.started and not is_none:
        tx.raises(TypeError("can't send non-None value to a just-started generator"))
    generator.started = True
    frame.push(value)
    item = frame.resume()
    if item is None:
        generator.returned = frame.result
    return item


@registry.advance(GeneratorVariable)
def _advance(tx: Tracer, generator: GeneratorVariable) -> VariableTracker | None:
    return send(tx, generator, ConstantVariable(None))


@registry.method(types.GeneratorType, "__iter__")
def _iter(tx: Tracer, generator: VariableTracker, /) -> VariableTracker:
    return generator


@registry.method(types.GeneratorType, "send")
def _send(tx: Tracer, generator: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    assert isinstance(generator, GeneratorVariable)
    item = send(tx, generator, value)
    return item if item is not None else stop(tx, generator)


@registry.method(types.GeneratorType, "__next__")
def _next(tx: Tracer, generator: VariableTracker, /) -> VariableTracker:
    return _send(tx, generator, ConstantVariable(None))


def stop(tx: Tracer, generator: GeneratorVariable) -> NoReturn:
    """Raise the StopIteration that carries what the generator returned."""
    tx.raises(StopIteration())


# Generators that outlive the graph


def can_be_handed_over(generator: GeneratorVariable) -> bool:
    """Whether a generator can be made again behind the graph, as it is now."""
    frame = generator.frame
    if not generator.started or generator.finished:
        return True
    waits = any(isinstance(value, ContextExitVariable) for value in frame.stack)
    return not waits and not in_except_handler(frame.code, frame.index)


def suspension(generator: GeneratorVariable) -> tuple[FramePoint, list[VariableTracker]]:
    """Where a started generator is suspended, and the values that its frame holds there, in the order of the point."""
    frame = generator.frame
    stack = [*frame.stack, ConstantVariable(None)]  # what it yields when it is taken there
    kinds = [NULL if isinstance(v, Null) else CELL if isinstance(v, CellVariable) else VALUE for v in stack]
    point = frame_point(frame.code, frame.index, kinds, frame.local_slots, frame.cells)
    values: list[VariableTracker] = [frame.cells[name] for name in point.cells]
    values += [value for value in stack if not isinstance(value, Null)]
    return point, values + [frame.local_slots[name] for name in point.locals]


def parts_of_generator(generator: GeneratorVariable) -> Iterator[VariableTracker]:
    """The values that a generator holds: those of its call, later those of its frame."""
    if generator.finished:
        return
    if generator.started:
        yield from suspension(generator)[1]
    else:
        yield from (generator.function, *generator.args, *generator.kwargs.values())


def maker_of(generator: GeneratorVariable) -> types.FunctionType:
    """The function that makes a generator suspended as this one is, from the list of its values."""
    return make_suspended(suspension(generator)[0], generator.frame.namespace, generator.frame.code.co_qualname)


def suspended(make: types.FunctionType, values: list[Any]) -> Any:
    """A generator that waits where `make` enters its frame."""
    generator = make(values)
    next(generator)
    return generator


def finished(code: types.CodeType) -> Any:
    """A generator of a function with this code that has come to its end."""
    make = types.FunctionType(code, {}, code.co_name, None, tuple(types.CellType() for _ in code.co_freevars))
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    generator = make(*[None] * code.co_argcount, **dict.fromkeys(names))
    generator.close()
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
