"""Owns loggers: whether a level is enabled is guarded, so that a disabled message costs no graph break.

Enabled messages break the graph: `logging` itself writes them. Functions of the module (`logging.info`) also break the
graph, because they may configure logging first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Called, Constant, Item
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.dry_run import defers_message
from minidynamo.tracer.handlers.values import none
from minidynamo.tracer.reachable import target_of
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.fix_hints import hint_for
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.objects import ObjectVariable

_LOGGERS = (logging.Logger, logging.RootLogger)
_IS_ENABLED = Constant(logging.Logger.isEnabledFor, "logging.Logger.isEnabledFor")


def _is_level_enabled(tx: Tracer, logger: VariableTracker, level: VariableTracker) -> bool | None:
    """Returns whether messages of a level reach handlers; None if this is unknown during capture."""
    value: Any = logger.value if isinstance(logger, ObjectVariable) else None
    if type(value) not in _LOGGERS or logger.source is None or not isinstance(level, ConstantVariable):
        return None
    if level.python_type is not int or any(map(_changes_logging, tx.side_effects.journal)):
        return None
    answer: bool = logging.Logger.isEnabledFor(value, level.value)
    tx.guard(Called(_IS_ENABLED, (logger.source, Constant(level.value, "level"))), GuardKind.IDENTITY, answer)
    return answer


def _changes_logging(effect: Any) -> bool:
    target = target_of(effect)
    return isinstance(target, ObjectVariable) and issubclass(target.cls, (logging.Filterer, logging.Manager))


def _defer_or_refuse(tx: Tracer, name: str, kwargs: dict[str, VariableTracker]) -> VariableTracker:
    return none() if defers_message(tx, kwargs) else _refuse(tx, name)


def _refuse(tx: Tracer, name: str) -> VariableTracker:
    why, fix = "Functions of logging run eagerly.", hint_for(name, "logging")
    tx.break_graph("MD207", f"Logger.{name}() cannot be captured", why=why, fix=fix)


@registry.function(logging.getLogger)
def _get_logger(tx: Tracer, name: VariableTracker | None = None) -> VariableTracker:
    """Returns an existing logger. The name refers to it until `logging` is reset."""
    if name is None or (isinstance(name, ConstantVariable) and name.value in (None, "", logging.root.name)):
        return tx.wrap(logging.root, Attr(Constant(logging, "logging"), "root"))
    loggers = logging.Logger.manager.loggerDict
    known = loggers.get(name.value) if isinstance(name, ConstantVariable) else None
    if not isinstance(known, logging.Logger):
        why = "The first call creates the logger."
        tx.break_graph(
            "MD207", "getLogger() cannot be captured", why=why, fix="Get the logger outside of the function."
        )
    assert isinstance(name, ConstantVariable)
    manager = Attr(Constant(logging.Logger, "logging.Logger"), "manager")
    return tx.wrap(known, Item(Attr(manager, "loggerDict"), name.value))


@registry.function(logging.Logger.isEnabledFor)
def _is_enabled_for(tx: Tracer, logger: VariableTracker, level: VariableTracker, /) -> VariableTracker:
    answer = _is_level_enabled(tx, logger, level)
    return _refuse(tx, "isEnabledFor") if answer is None else ConstantVariable(answer)


@registry.function(logging.Logger.log)
def _log(
    tx: Tracer, logger: VariableTracker, level: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return none() if _is_level_enabled(tx, logger, level) is False else _defer_or_refuse(tx, "log", kwargs)


def _level_handler(method: Callable[..., None], level: int) -> registry.Handler:
    def handler(
        tx: Tracer, logger: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        enabled = _is_level_enabled(tx, logger, ConstantVariable(level))
        return none() if enabled is False else _defer_or_refuse(tx, method.__name__, kwargs)

    return handler


_LEVELS: dict[Any, int] = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
}
for _method, _level in _LEVELS.items():
    registry.function(_method)(_level_handler(_method, _level))
