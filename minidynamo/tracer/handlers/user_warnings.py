"""Owns `warnings.warn`: the warning is shown after the graph, for the file and line of the call.

Whether it is shown is decided after the graph, by the filters. The graph breaks at a warning for a line outside of
the traced functions (`stacklevel`), while a filter turns warnings into errors, and while the program collects warnings,
since it may read them. The deferral is in `output.py`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

from minidynamo.compat import warning_writers
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Constant
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.handlers.dry_run import defers_message
from minidynamo.tracer.handlers.output import defer_output
from minidynamo.tracer.handlers.values import none
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import FunctionVariable, MethodVariable, NestedFunctionVariable
from minidynamo.variables.objects import ClassVariable

# Modules whose functions write a warning to a file, where the program does not read it.
_WRITERS = ("warnings", "logging")


def are_warnings_written() -> bool:
    """Returns whether warnings are only written: no filter raises them, and the program does not collect them."""
    reach_files = all(getattr(function, "__module__", None) in _WRITERS for function in warning_writers())
    return reach_files and all(action != "error" for action, *_ in warnings.filters)


_ARE_WRITTEN = Constant(are_warnings_written, "are_warnings_written")


def _warner(namespace: dict[str, Any]) -> Callable[..., None]:
    """Returns a function that warns as the functions of a module do."""

    def warn(category: type[Warning], file: str, line: int, message: str) -> None:
        module, seen = namespace.get("__name__", "<string>"), namespace.setdefault("__warningregistry__", {})
        warnings.warn_explicit(message, category, file, line, module, seen)

    return warn


def _are_written(tx: Tracer) -> bool:
    if tx.side_effects.writes_globals(vars(warnings)):
        return False
    answer = are_warnings_written()
    tx.guard(Called(_ARE_WRITTEN, ()), GuardKind.IDENTITY, answer)
    return answer


def _warning_frame(tx: Tracer, level: VariableTracker) -> Frame | None:
    """Returns the frame that a warning with this `stacklevel` names; None if it is not traced, or not known.

    Handlers trace some Python functions without a frame, so each call up to this frame must be a direct call.
    """
    depth = level.value if isinstance(level, ConstantVariable) else None
    if type(depth) is not int or not 1 <= depth <= len(tx.frames):
        return None
    frames = tx.frames[-depth:]
    are_direct = all(_calls_directly(caller, frame) for caller, frame in itertools.pairwise(frames))
    return frames[0] if are_direct and not any(frame.is_polyfill for frame in frames) else None


def _calls_directly(caller: Frame, frame: Frame) -> bool:
    callee = caller.callee.function if isinstance(caller.callee, MethodVariable) else caller.callee
    if isinstance(callee, FunctionVariable):
        return callee.value.__code__ is frame.code
    return isinstance(callee, NestedFunctionVariable) and callee.code is frame.code


@registry.function(warnings.warn)
def _warn(
    tx: Tracer,
    message: VariableTracker,
    category: VariableTracker | None = None,
    *args: VariableTracker,
    **kwargs: VariableTracker,
) -> VariableTracker:
    if not args and defers_message(tx, kwargs):
        return none()
    if category is None or (isinstance(category, ConstantVariable) and category.value is None):
        category = tx.wrap(UserWarning, None)
    is_known = isinstance(category, ClassVariable) and issubclass(category.value, Warning)
    level = args[0] if args else kwargs.get("stacklevel", ConstantVariable(1))
    has_known_options = len(args) + len(kwargs) < 2 and kwargs.keys() <= {"stacklevel"}
    frame = _warning_frame(tx, level) if has_known_options else None
    if frame is not None and is_known and message.python_type is str and _are_written(tx):
        file, line = ConstantVariable(frame.location.filename), ConstantVariable(frame.location.lineno)
        if defer_output(tx, _warner(frame.namespace), [message], before=[category, file, line]):
            return none()
    tx.break_graph(
        "MD233",
        "`warnings.warn`",
        why="It names a line outside of the traced functions, or the program catches or collects warnings.",
        fix="Call it in a function that is not compiled, or accept the break.",
    )
