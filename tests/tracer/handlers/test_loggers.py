"""Tests of minidynamo/tracer/handlers/loggers.py: messages below a logger's level cost no graph break."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager, no_recompile

LOGGER = logging.getLogger(__name__)


class Own(logging.Logger):
    def isEnabledFor(self, level: int) -> bool:
        return level == logging.DEBUG


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    LOGGER.setLevel(logging.WARNING)
    yield
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.disabled = False
    logging.disable(logging.NOTSET)


def tells(logger: logging.Logger, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    logger.debug("result: %s", y, exc_info=True)
    logger.info("shape: %s", y.shape)
    logger.log(5, "detail")
    if logger.isEnabledFor(logging.INFO):
        y = y + 1
    return y + 1


def test_what_nobody_gets_is_no_reason_to_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return tells(LOGGER, x)

    assert_same_as_eager(program, lambda: torch.ones(2), calls=2, graphs=1)


@pytest.mark.parametrize("how", ["level", "disable", "disabled"])
def test_what_decides_about_it_is_guarded(how: str, logged: list[logging.LogRecord]) -> None:
    def let_through(wanted: bool) -> None:
        LOGGER.setLevel(logging.INFO if wanted or how != "level" else logging.WARNING)
        LOGGER.disabled = not wanted and how == "disabled"
        logging.disable(logging.NOTSET if wanted or how != "disable" else logging.CRITICAL)

    compiled = minidynamo.compile(tells, backend="eager")
    found = []
    for wanted in (False, True, False, True):
        let_through(wanted)
        found.append((compiled(LOGGER, torch.ones(2)).tolist(), len(logged)))
    assert found == [([3, 3], 0), ([4, 4], 1), ([3, 3], 1), ([4, 4], 2)]
    with no_recompile():
        compiled(LOGGER, torch.ones(2))


def own_line(record: logging.LogRecord) -> tuple[object, ...]:
    where = record.funcName, record.lineno, record.pathname
    return (record.getMessage(), record.name, record.levelno, len(record.args or ()), *where)


@pytest.mark.parametrize("method", ["warning", "error", "critical"])
def test_a_written_message_is_no_reason_to_break(method: str, logged: list[logging.LogRecord]) -> None:
    def warns(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        getattr(LOGGER, method)("number %d of %s", 3, y)
        getattr(LOGGER, method)("%.1f: %s", y.sum().item(), y.shape)
        LOGGER.log(logging.ERROR, f"mean {y.mean()}")
        return y + 1

    compiled = minidynamo.compile(warns, backend="eager", fullgraph=True)
    expected, found = warns(torch.ones(2)), compiled(torch.ones(2))
    assert torch.equal(expected, found)
    half = len(logged) // 2
    assert half == 3 and [*map(own_line, logged[:half])] == [*map(own_line, logged[half:])]


def test_a_message_with_a_traceback_is_written_by_python(logged: list[logging.LogRecord]) -> None:
    def warns(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        LOGGER.warning("number %d", 3, stack_info=True)
        return y + 1

    compiled = minidynamo.compile(warns, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert "Logger.warning()" in compiled.breaks() and "Log outside" in compiled.breaks()
    assert [record.getMessage() for record in logged] == ["number 3"]


def test_functions_of_the_module_log_with_the_root_logger(logged: list[logging.LogRecord]) -> None:
    def warns(x: torch.Tensor) -> torch.Tensor:
        logging.warning("total %s", x.sum())
        logging.log(logging.ERROR, "shape %s", x.shape)
        return x + 1

    compiled = minidynamo.compile(warns, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), warns(torch.ones(2)))
    assert [*map(own_line, logged[:2])] == [*map(own_line, logged[2:])] and len(logged) == 4


def test_a_program_that_switches_logging_itself_leaves_it_to_python(logged: list[logging.LogRecord]) -> None:
    def switches(x: torch.Tensor) -> torch.Tensor:
        LOGGER.disabled = True
        LOGGER.warning("never")
        LOGGER.disabled = False
        LOGGER.warning("once")
        return x + 1

    minidynamo.compile(switches, backend="eager")(torch.ones(2))
    assert [record.getMessage() for record in logged] == ["once"]


def test_a_logger_with_its_own_rule_is_asked_by_python() -> None:
    logger, messages = Own("own", logging.WARNING), []

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger.addHandler(Told())
    minidynamo.compile(tells, backend="eager")(logger, torch.ones(2))
    assert len(messages) == 1 and messages[0].startswith("result")


def test_loggers_by_their_names() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        logger = logging.getLogger(__name__)
        logger.debug("x: %s", x)
        logging.getLogger().debug("nobody hears this")
        return tells(logger, x), logger is LOGGER and logging.getLogger("root") is logging.root

    assert_same_as_eager(program, lambda: torch.ones(2), calls=2, graphs=1)


def test_a_logger_that_is_made_is_made_by_logging() -> None:
    def program(x: torch.Tensor, name: str) -> logging.Logger:
        return logging.getLogger(name)

    name = f"{__name__}.made"
    compiled = minidynamo.compile(program, backend="eager")
    made = compiled(torch.ones(2), name)
    assert made is logging.getLogger(name) and compiled(torch.ones(2), name) is made
    other = logging.Logger(name)
    logging.Logger.manager.loggerDict[name] = other
    assert compiled(torch.ones(2), name) is other


@functools.cache
def once(text: str) -> None:
    LOGGER.info(text)


def test_a_message_that_appears_once_waits_for_the_graph_if_it_is_disabled() -> None:
    """The cache is filled after the change, as in eager."""
    seen: list[torch.Tensor] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        once("hidden")
        return x + 1

    once.cache_clear()
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert (len(seen), once.cache_info().currsize) == (3, 1)
