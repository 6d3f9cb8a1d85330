"""Owns the logs: writes the texts selected by `MINIDYNAMO_LOGS` or `config.logs` to standard error, line by line.

It only subscribes to events. Logs use Python's `logging`: each log is a logger below "minidynamo", to which a program
may add handlers. The grammar is torch's: names with commas between them, `+name` for more detail, `-name` for none,
`help` for the list.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

from minidynamo.config import config
from minidynamo.core.events import Event, on_event
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, UnknownName, nearest


def _recompiles(event: Event, detailed: bool) -> Iterator[str]:
    if event.kind == "recompile":
        yield event.data["diagnostic"].render()
        for number, failures in enumerate(event.data["failures"] if detailed else ()):
            yield from (f"  version {number}: {failure}" for failure in failures)


def _graph_breaks(event: Event, detailed: bool) -> Iterator[str]:
    if event.kind == "graph_break":
        yield event.data["diagnostic"].render()


def _guards(event: Event, detailed: bool) -> Iterator[str]:
    if event.kind == "entry":
        entry = event.data["entry"]
        yield f"guards of {event.name}\n{entry.describe()}"
        if detailed:
            yield entry.condition.function_source or entry.condition.text


def _artifacts(*kinds: str) -> Callable[[Event, bool], Iterator[str]]:
    def show(event: Event, detailed: bool) -> Iterator[str]:
        if event.kind == "artifact" and event.name in kinds:
            yield f"{event.data['path']}\n{event.data['text']}"

    return show


@record(frozen=True)
class Log:
    """A log that can be selected."""

    description: str
    #: `show(event, detailed)` yields the texts for an event.
    show: Callable[[Event, bool], Iterator[str]]


LOGS = {
    "recompiles": Log("why a function was compiled again; + the difference from each version", _recompiles),
    "graph_breaks": Log("where a graph was cut, why, and what to write instead", _graph_breaks),
    "guards": Log("the guards of each compiled version; + the text that checks them", _guards),
    "graph_code": Log("each captured graph as code", _artifacts("graph")),
    "aot_graphs": Log("the forward and backward graphs of the autograd stage", _artifacts("aten")),
    "output_code": Log("the kernels and the host program of each graph", _artifacts("kernel", "host")),
    "bytecode": Log("the generated dispatchers and residual programs", _artifacts("dispatch", "locked", "residual")),
}


def selected_levels(text: str) -> dict[str, int]:
    """Parses the selection of logs: log -> level.

    Raises UnknownName for a log that does not exist.
    """
    levels: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(part[0], logging.INFO)
        name = part.lstrip("+-")
        if name not in (*LOGS, "all", "help"):
            what = f"there is no log {name!r}.{nearest(name, LOGS)}"
            raise UnknownName(Diagnostic("MD101", what, fix=f"Logs: {', '.join(LOGS)}, all, help."))
        levels |= dict.fromkeys(LOGS if name == "all" else [name], level)
    return levels


def listing() -> str:
    """Returns one line for each log."""
    return "\n".join(f"{name:<14} {log.description}" for name, log in LOGS.items())


class _Logs:
    """The subscriber, which is subscribed only while a log is selected."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self._stop: Callable[[], None] | None = None

    def follow(self) -> None:
        """Applies the current settings."""
        levels = selected_levels(config.logs)
        if levels.pop("help", None):
            print(f"MINIDYNAMO_LOGS takes names with commas between them:\n{listing()}", file=sys.stderr)
        self._levels = {name: level for name, level in levels.items() if level <= logging.INFO}
        for name, level in self._levels.items():
            _logger(name).setLevel(level)
        if bool(self._levels) != (self._stop is not None):
            if self._stop is not None:
                self._stop()
            self._stop = on_event(self) if self._levels else None

    def __call__(self, event: Event) -> None:
        for name, level in self._levels.items():
            for text in LOGS[name].show(event, level == logging.DEBUG):
                for line in text.splitlines():
                    _logger(name).log(level, "%s", line)


def _logger(name: str) -> logging.Logger:
    logger = logging.getLogger(f"minidynamo.{name}")
    if not logger.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter(f"[{name}] %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current `sys.stderr` at each record, not to the one at creation."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_logs = _Logs()


def install() -> None:
    """Starts to follow `config.logs`."""
    config.on_change(_logs.follow)
    _logs.follow()
