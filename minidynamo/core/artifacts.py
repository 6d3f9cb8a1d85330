"""Owns the files that minidynamo writes: every guard, residual program, graph and kernel is a text on disk.

It knows nothing of their contents. Python sources are also registered with `linecache`, so that tracebacks and pdb
show them even when the disk cannot be written.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import linecache
import os
import re
import shutil
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import platformdirs

from minidynamo.config import config
from minidynamo.core.events import publish

P = ParamSpec("P")
R = TypeVar("R")

STAGES = {
    "dispatch": "dispatcher",
    "guards": "guards",
    "residual": "residual program",
    "graph": "captured graph",
    "aten": "ATen graph",
    "loops": "loops and kernels",
    "kernel": "source of the kernels",
    "host": "host program",
}
"""The kinds of texts that a compiled function is made of, in the order in which a call passes through them."""


@dataclass(frozen=True)
class Artifact:
    """A text that was written. `kind` is often one of STAGES; `name` says whose it is; `data` is what it shows."""

    kind: str
    name: str
    path: str
    text: str
    data: Any = None

    def section(self) -> str:
        """The text below a heading with its file."""
        return f"# {STAGES.get(self.kind, self.kind)} of {self.name}: {self.path}\n{self.text}"


_collected: contextvars.ContextVar[list[Artifact] | None] = contextvars.ContextVar("collected", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[Artifact]]:
    """The list of all texts that are written in the `with` block, and by what was made `collecting` in it."""
    texts: list[Artifact] = []
    token = _collected.set(texts)
    try:
        yield texts
    finally:
        _collected.reset(token)


@contextlib.contextmanager
def kept_if_done() -> Iterator[None]:
    """What is written in the `with` block is collected only if the block comes to its end."""
    texts = _collected.get()
    count = len(texts or ())
    try:
        yield
    except BaseException:
        del (texts or [])[count:]
        raise


def collecting(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose texts belong to whoever collects now, whenever it is called."""
    texts = _collected.get()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        token = _collected.set(texts)
        try:
            return function(*args, **kwargs)
        finally:
            _collected.reset(token)

    return call


def cache_dir() -> Path:
    """The folder that outlives the process: `config.cache_dir`, or the platform's cache folder for minidynamo."""
    return Path(config.cache_dir) if config.cache_dir else Path(platformdirs.user_cache_dir("minidynamo"))


def code_dir() -> Path:
    """The folder for the texts of this process: below `config.debug_dir` if set, else below the cache folder."""
    if config.debug_dir:
        return Path(config.debug_dir)
    return cache_dir() / "generated" / f"run_{os.getpid()}"


# What a file is called that is being written, or was when its process was killed.
PART = ".part"
_KEPT_SECONDS = 7 * 24 * 3600

_serial = itertools.count()
_HOST_PROGRAM = re.compile(r"[/\\]\d{4,}_host_\w+\.py$")
"""The paths of texts that run the operations of a graph."""
_OPERATOR = re.compile(r"\Aoperator (\d+) at ")
"""How comments begin above calls that are numbered."""

# Python's `warnings` and `logging` pass over frames of files with these words in their names, which are meant to be
# those of its import system: `stacklevel=2` then names the line that called a function, not what called it for us.
_PASSED_OVER = "importlib_bootstrap"
_BELOW_THE_PROGRAM = frozenset(("dispatch", "frozen", "native", "residual"))
"""The kinds of texts whose functions call functions of the program."""


def write(kind: str, name: str, text: str, suffix: str = ".py", data: Any = None) -> str:
    """Write `text` to a new file and return its path.

    `kind` is one of STAGES or says what else it is; `name` says whose it is; `data` is what it shows. A folder that
    cannot be written does not stop a compile: the text then lives in `linecache` only.
    """
    stem = re.sub(r"\W+", "_", name).strip("_") or "unnamed"
    folder = code_dir() / _PASSED_OVER if kind in _BELOW_THE_PROGRAM else code_dir()
    path = folder / f"{next(_serial):04d}_{kind}_{stem}{suffix}"
    with contextlib.suppress(OSError):
        _write_here(path, text.encode())
    # A modification time of None tells linecache.checkcache to keep the entry, whatever happens to the file.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    texts = _collected.get()
    if texts is not None:
        texts.append(Artifact(kind, name, str(path), text, data))
    publish("artifact", kind, path=str(path), text=text)
    return str(path)


def _write_here(path: Path, content: bytes) -> None:
    """Write a file that only this process reads: a compile writes ten of them, which is felt."""
    try:
        path.write_bytes(content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        _remove_old(cache_dir() / "generated")


def _remove_old(runs: Path) -> None:
    """Remove the texts of processes that have written none for long: nobody looks at them any more."""
    before = time.time() - _KEPT_SECONDS
    for run in runs.glob("run_*"):
        with contextlib.suppress(OSError):
            if run.stat().st_mtime < before:
                shutil.rmtree(run, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file such that others see all of it or nothing. Raises OSError, and leaves nothing behind then."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=PART)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def load(kind: str, name: str, source: str, namespace: dict[str, Any], function: str) -> types.FunctionType:
    """Write Python `source`, execute it in `namespace`, and return the function it defines under `function`."""
    execute(write(kind, name, source), source, namespace)
    made: types.FunctionType = namespace[function]
    return made


def execute(path: str, source: str, namespace: dict[str, Any]) -> None:
    """Execute Python `source`, which was written to `path`, in `namespace`."""
    exec(compile(source, path, "exec", dont_inherit=True), namespace)  # annotations are read as they stand


def users_lines(error: BaseException) -> list[str]:
    """The lines of the program whose operations raised `error`: `train.py:12 in f: y = table[i]`, one or more.

    They are the comments above the statement of a host program. Memory is made for no line alone.
    """
    lines: list[str] = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _HOST_PROGRAM.search(frame.f_code.co_filename):
            lines = _comments_above(frame.f_code.co_filename, number)
    return [_OPERATOR.sub("", line) for line in lines]


def raised_operator(error: BaseException) -> int:
    """The number of the operator of the user's that raised `error`, in the graph that the function called which has
    caught it; 0 where that is not known."""
    for frame, number in itertools.islice(traceback.walk_tb(error.__traceback__), 1, None):
        path = frame.f_code.co_filename
        if _HOST_PROGRAM.search(path):
            numbers = [int(match[1]) for line in _comments_above(path, number) if (match := _OPERATOR.match(line))]
            return numbers[0] if len(numbers) == 1 else 0
        if f"{os.sep}{_PASSED_OVER}{os.sep}" in path:  # another compiled function
            return 0
    return 0


def _comments_above(path: str, number: int) -> list[str]:
    """What stands above a statement of a host program."""
    *before, statement = linecache.getlines(path)[:number] or [""]
    from_comment = itertools.dropwhile(lambda line: not _is_comment(line), reversed(before))
    comments = itertools.takewhile(_is_comment, from_comment)
    return [] if "= empty_" in statement else [line.strip().removeprefix("# ") for line in comments][::-1]


def _is_comment(line: str) -> bool:
    return line.startswith("    # ")


def passed_over(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which calls functions of the program; warnings and log records of these do not name its line."""
    if isinstance(function, types.FunctionType):
        function.__code__ = _renamed(function.__code__)
    return function


@functools.cache
def _renamed(code: types.CodeType) -> types.CodeType:
    return code.replace(co_filename=f"<minidynamo {_PASSED_OVER}>")
