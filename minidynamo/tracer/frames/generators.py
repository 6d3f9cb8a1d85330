"""Owns generators created during tracing: suspended frames that continue at the next request for an item.

`tracer/opcodes/control.py` has the opcodes that suspend a frame. A generator that outlives the graph is created
again: by a call before the start, else as a frame that is entered at the suspension point.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, NoReturn

from minidynamo import compat
from minidynamo.bytecode.breaks import make_suspended
from minidynamo.bytecode.layout import CELL, NULL, VALUE, FramePoint, frame_point
from minidynamo.core.records import record
from minidynamo.tracer.frames.exceptions import catch_raised, exception_with, generator_stop_error
from minidynamo.tracer.frames.interpreter import Frame, Raised, Tracer
from minidynamo.tracer.lazy.lazy_value import is_none
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace
from minidynamo.tracer.records.traced_frame import Null
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import CellVariable, ContextExitVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ClassVariable, ExceptionVariable, ObjectVariable, OpaqueVariable


@record(eq=False)
class GeneratorVariable(VariableTracker):
    """A generator created during tracing."""

    python_type = types.GeneratorType
    #: its frame
    frame: Frame
    #: the called generator function; its call can be repeated until the generator starts
    function: VariableTracker
    args: tuple[VariableTracker, ...] = ()
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)
    started: bool = False
    #: the return value of the frame, after a request for an item ended the frame
    returned: VariableTracker | None = None

    @property
    def finished(self) -> bool:
        """True if the frame has returned or raised."""
        return self.frame.result is not None


def send(tx: Tracer, generator: GeneratorVariable, value: VariableTracker) -> VariableTracker | None:
    """Resumes the generator with `value` as the result of `yield`. Returns the next item; None if the frame
    returned."""
    frame = generator.frame
    if generator.finished:
        generator.returned = ConstantVariable(None)
        return None
    if frame in tx.frames:
        tx.raises(ValueError("generator already executing"))
    if not generator.started and not is_none(tx, value):
        tx.raises(TypeError("can't send non-None value to a just-started generator"))
    if not generator.started:
        generator.started = True
        frame.tx.generators.append(generator)
    frame.push(value)
    return _resume(generator)


def _resume(generator: GeneratorVariable) -> VariableTracker | None:
    frame = generator.frame
    try:
        item = frame.resume()
    except Raised as raised:
        if compat.PY312 or not issubclass(raised.exception.cls, StopIteration):
            raise
        error = generator_stop_error(raised.exception)  # from 3.12 on, the generator's own code does this
        frame.tx.raised[error] = raised.of(error)
        raise frame.tx.raised[error] from None
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
@registry.accepts_lazy("value")
def _send(tx: Tracer, generator: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    assert isinstance(generator, GeneratorVariable)
    item = send(tx, generator, value)
    return item if item is not None else stop(tx, generator)


@registry.method(types.GeneratorType, "__next__")
def _next(tx: Tracer, generator: VariableTracker, /) -> VariableTracker:
    return _send(tx, generator, ConstantVariable(None))


def stop(tx: Tracer, generator: GeneratorVariable) -> NoReturn:
    """Raises the StopIteration that carries the generator's return value."""
    value = generator.returned
    arguments = [] if value is None or is_none(tx, value) else [value]
    tx.raises(ExceptionVariable(None, StopIteration, args=TupleVariable(arguments)))


# Exceptions from outside


def throw(tx: Tracer, generator: GeneratorVariable, exception: ExceptionVariable) -> VariableTracker | None:
    """Raises an exception at the suspension point. Returns the next item; None if the frame returned."""
    frame = generator.frame
    if frame in tx.frames:
        tx.raises(ValueError("generator already executing"))
    if not generator.started or generator.finished:
        generator.started, frame.result = True, ConstantVariable(None)
        tx.raises(exception)
    frame.tx.frames.append(frame)
    try:
        item = _raise_inside(tx, frame, exception)
    except Raised as raised:
        item = None
        if not frame.handles(raised):
            frame.tx.frames.pop()
            frame.result = ConstantVariable(None)
            raise
    frame.tx.frames.pop()
    return item or _resume(generator)


def _raise_inside(tx: Tracer, frame: Frame, exception: ExceptionVariable) -> VariableTracker | None:
    """Raises in the frame, or in the generator of its active `yield from`. Returns the next item of the inner
    generator."""
    send_index = frame.index - 1
    inner = frame.stack[-1] if frame.instructions[send_index].opname == "SEND" else None
    if isinstance(inner, GeneratorVariable):
        if not issubclass(exception.cls, GeneratorExit):
            item = throw(tx, inner, exception)
            if item is None:
                frame.end_delegation(frame.instructions[send_index], inner.returned or ConstantVariable(None))
            return item
        close(tx, inner)
    elif isinstance(inner, (ObjectVariable, OpaqueVariable)):
        tx.break_graph(
            "MD209", "an exception is thrown into `yield from`", why="The inner iterator is an external value."
        )
    tx.raises(exception)


def close(tx: Tracer, generator: GeneratorVariable) -> VariableTracker:
    """Raises GeneratorExit at the suspension point, and expects the generator to end. Returns the value of its
    `return`."""
    if not generator.started or generator.finished:
        generator.started, generator.frame.result = True, ConstantVariable(None)
        return ConstantVariable(None)
    ended: list[VariableTracker] = []
    item = catch_raised(GeneratorExit, lambda: throw(tx, generator, exception_with(GeneratorExit)), ended.append)
    if item is not None:
        tx.raises(RuntimeError("generator ignored GeneratorExit"), exact=True)
    return ConstantVariable(None) if ended else generator.returned or ConstantVariable(None)


@registry.method(types.GeneratorType, "throw")
def _throw(tx: Tracer, generator: VariableTracker, error: VariableTracker, /) -> VariableTracker:
    assert isinstance(generator, GeneratorVariable)
    if isinstance(error, ClassVariable) and issubclass(error.value, BaseException):
        error = tx.call(error)
    if not isinstance(error, ExceptionVariable):
        tx.break_graph("MD209", "an external exception is thrown into a generator", why="Its traceback is not known.")
    item = throw(tx, generator, error)
    return item if item is not None else stop(tx, generator)


@registry.method(types.GeneratorType, "close")
def _close(tx: Tracer, generator: VariableTracker, /) -> VariableTracker:
    assert isinstance(generator, GeneratorVariable)
    returned = close(tx, generator)
    return returned if compat.PY313 else ConstantVariable(None)


# Generators that outlive the graph


def why_not_resumable(tx: Tracer, found: Iterable[VariableTracker]) -> str:
    """Returns the reason why Python cannot continue a started generator that outlives the graph; "" if there is
    none."""
    outliving = {v for v in found if isinstance(v, GeneratorVariable)}
    for generator in (g for g in tx.generators if isinstance(g, GeneratorVariable) and not g.finished):
        frame = generator.frame
        if generator not in outliving:
            if _is_protected(frame):
                return "It was dropped inside `try` or `with`, which Python leaves when it frees the generator."
        elif any(isinstance(value, ContextExitVariable) for value in frame.stack):
            return "It waits inside a `with` block that the graph has entered."
        elif frame.handled is not None:
            return "It waits while it handles an exception."
    return ""


def _is_protected(frame: Frame) -> bool:
    """Returns whether a handler or cleanup of the program runs if an exception is raised at the suspension point."""
    handler = frame.instruction.handler
    while handler is not None and frame.instructions[handler.target].opname in ("CLEANUP_THROW", "CALL_INTRINSIC_1"):
        handler = frame.instructions[handler.target].handler
    return handler is not None


def suspension(generator: GeneratorVariable) -> tuple[FramePoint, list[VariableTracker]]:
    """Returns the frame point of a started generator, and the values in the frame, in the order of the point."""
    frame = generator.frame
    stack = [*frame.stack, ConstantVariable(None)]  # the value yielded on the move to this point
    kinds = [NULL if isinstance(v, Null) else CELL if isinstance(v, CellVariable) else VALUE for v in stack]
    point = frame_point(frame.code, frame.index, kinds, frame.local_slots, frame.cells)
    values: list[VariableTracker] = [frame.cells[name] for name in point.cells]
    values += [value for value in stack if not isinstance(value, Null)]
    return point, values + [frame.local_slots[name] for name in point.locals]


def parts_of_generator(generator: GeneratorVariable) -> Iterator[VariableTracker]:
    """Yields the values held by a generator: the callee and arguments before the start, then the values in the
    frame."""
    if generator.finished:
        return
    if generator.started:
        yield from suspension(generator)[1]
    else:
        yield from (generator.function, *generator.args, *generator.kwargs.values())


def maker_of(generator: GeneratorVariable) -> types.FunctionType:
    """Returns a function that creates a generator suspended at the same point, from the list of its values."""
    return make_suspended(suspension(generator)[0], generator.frame.namespace, generator.frame.code.co_qualname)


def suspended(make: types.FunctionType, values: list[Any]) -> Any:
    """Returns a generator that is suspended at the point where `make` enters its frame."""
    generator = make(values)
    next(generator)
    return generator


def finished(code: types.CodeType) -> Any:
    """Returns a finished generator of a function with this code."""
    make = types.FunctionType(code, {}, code.co_name, None, tuple(types.CellType() for _ in code.co_freevars))
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    generator = make(*[None] * code.co_argcount, **dict.fromkeys(names))
    generator.close()
    return generator


_DONE = object()


@registry.polyfill(contextlib._GeneratorContextManager.__exit__)
def leave_generator_context(self, typ, value, traceback):  # type: ignore[no-untyped-def]
    """Leaves a `with` block of a @contextmanager function."""
    if typ is None:
        if next(self.gen, _DONE) is not _DONE:
            return cannot_trace("a @contextmanager function that yields twice", "it raises RuntimeError")
        return False
    try:
        self.gen.throw(value)
    except StopIteration as error:
        return error is not value
    except BaseException as error:
        # Python wraps a StopIteration that leaves the generator.
        if error is value or (isinstance(value, StopIteration) and error.__cause__ is value):
            return False
        raise
    return cannot_trace("a @contextmanager function that yields twice", "it raises RuntimeError")
