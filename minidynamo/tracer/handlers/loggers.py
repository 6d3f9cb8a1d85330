"""Owns loggers: whether a level is enabled is guarded, so that a disabled message costs nothing, and an enabled message
is logged after the graph, with the file, line and function of the call.

The deferral of a message is in `output.py`. The graph breaks at a message with keywords (`exc_info`, `stacklevel`), and
at the first message of an unconfigured root logger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Called, Constant, Item
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.dry_run import defers_message
from minidynamo.tracer.handlers.output import defer_output
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


def write_record(logger: logging.Logger, level: int, file: str, line: int, name: str, text: object, *args: Any) -> None:
    """Logs a message as the function `name` would, in a line of a file."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, file, line, text, args, None, name))


def _log_later(
    tx: Tracer,
    logger: VariableTracker,
    level: VariableTracker,
    values: Sequence[VariableTracker],
    kwargs: Mapping[str, VariableTracker],
) -> bool:
    """Drops a message that is disabled, or defers it until after the graph; returns False if the graph must break.

    A function that is called after the graph as a whole logs its messages itself, the disabled ones too.
    """
    if defers_message(tx, kwargs):
        return True
    is_enabled = _is_level_enabled(tx, logger, level)
    if is_enabled is False:
        return True
    caller = tx.frames[-1]
    if is_enabled is None or kwargs or not values or caller.is_polyfill:
        return False
    where = caller.location.filename, caller.location.lineno, caller.location.function
    return defer_output(tx, write_record, values, before=[logger, level, *map(ConstantVariable, where)])


def _refuse(tx: Tracer, name: str) -> NoReturn:
    why, fix = "Functions of logging run eagerly.", hint_for(name, "logging")
    tx.break_graph("MD207", f"Logger.{name}() cannot be captured", why=why, fix=fix)


def _root(tx: Tracer) -> VariableTracker:
    return tx.wrap(logging.root, Attr(Constant(logging, "logging"), "root"))


@registry.function(logging.getLogger)
def _get_logger(tx: Tracer, name: VariableTracker | None = None) -> VariableTracker:
    """Returns an existing logger. The name refers to it until `logging` is reset."""
    if name is None or (isinstance(name, ConstantVariable) and name.value in (None, "", logging.root.name)):
        return _root(tx)
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
    if answer is None:
        _refuse(tx, "isEnabledFor")
    return ConstantVariable(answer)


@registry.function(logging.Logger.log)
def _log(
    tx: Tracer, logger: VariableTracker, level: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    if _log_later(tx, logger, level, args, kwargs):
        return none()
    _refuse(tx, "log")


def _level_handler(method: Callable[..., None], number: int) -> registry.Handler:
    level = ConstantVariable(number)

    def handler(
        tx: Tracer, logger: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        if _log_later(tx, logger, level, args, kwargs):
            return none()
        _refuse(tx, method.__name__)

    return handler


def _root_handler(name: str) -> registry.Handler:
    """Returns the handler of a function of the module, which calls a method of the root logger."""

    def handler(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        root = _root(tx)
        if not tx.truth(tx.getattr(root, "handlers")):  # the first message configures logging
            _refuse(tx, name)
        return tx.call_method(root, name, args, kwargs)

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
for _function in (logging.debug, logging.info, logging.warning, logging.error, logging.critical, logging.log):
    registry.function(_function)(_root_handler(_function.__name__))
