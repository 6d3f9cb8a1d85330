"""Owns the files that minidynamo writes: every guard, residual program, graph and kernel is a text on disk.

Knows nothing of their contents. Python sources are also registered with `linecache`, so that tracebacks and pdb show
the sources even when the disk cannot be written.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import itertools
import linecache
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import platformdirs

from minidynamo.config import config
from minidynamo.core.events import notice, publish
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, MinidynamoError

P = ParamSpec("P")
R = TypeVar("R")

STAGES = {
    "dispatch": "dispatcher",
    "guards": "guards",
    "residual": "residual program",
    "node": "autograd node",
    "graph": "captured graph",
    "aten": "ATen graph",
    "loops": "loops and kernels",
    "kernel": "source of the kernels",
    "host": "host program",
}
"""The kinds of texts of a compiled function, in the order in which a call runs through them."""


@record(frozen=True)
class Artifact:
    """A text that was written."""

    #: a key of STAGES, or another kind
    kind: str
    #: the name of the function or graph that the text belongs to
    name: str
    #: the file
    path: str
    #: the contents
    text: str
    #: the object that the text shows
    data: Any = None

    def section(self) -> str:
        """Returns the text below a heading with its file."""
        return f"# {STAGES.get(self.kind, self.kind)} of {self.name}: {self.path}\n{self.text}"


_collected: contextvars.ContextVar[list[Artifact] | None] = contextvars.ContextVar("collected", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[Artifact]]:
    """Collects all texts written in the `with` block, and by functions wrapped by `collecting` in the block."""
    texts: list[Artifact] = []
    token = _collected.set(texts)
    try:
        yield texts
    finally:
        _collected.reset(token)


@contextlib.contextmanager
def discarded_on_error() -> Iterator[None]:
    """Collects texts written in the `with` block only if the block ends without an error."""
    texts = _collected.get()
    count = len(texts or ())
    try:
        yield
    except BaseException:
        del (texts or [])[count:]
        raise


def collecting(function: Callable[P, R]) -> Callable[P, R]:
    """Returns `function`, whose texts belong to the present collector in all later calls."""
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
    """Returns the folder that outlives the process: `config.cache_dir`, or the platform's cache folder for
    minidynamo. A folder that cannot be used or trusted is replaced by a private one.
    """
    return _trusted(chosen_folder())


def chosen_folder() -> str:
    """Returns the cache folder that the settings name, whether it can be used or not."""
    return config.cache_dir or platformdirs.user_cache_dir("minidynamo")


@functools.cache
def _trusted(folder: str) -> Path:
    """Returns a folder, or a private one in its place, with a notice."""
    problem = problem_with(folder)
    if not problem:
        return Path(folder)
    fix = "Name a folder of your own in MINIDYNAMO_CACHE_DIR."
    notice(Diagnostic("MD604", f"the cache folder {folder} is not used", why=f"{problem[:200]}.", fix=fix))
    return _private_folder()


def problem_with(folder: str) -> str:
    """Creates a cache folder if it is missing. Returns the reason why the folder cannot be used, or "": the process
    cannot enter the folder, or other users could have put code into it.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        status = Path(folder).stat()
        if not os.access(folder, os.R_OK | os.X_OK):
            return "this user may not read it"
        if status.st_uid not in (_user(), 0):
            return f"it belongs to the user {status.st_uid}, who could put code into it"
        return "every user of this machine could put code into it" if status.st_mode & stat.S_IWOTH else ""
    except (OSError, ValueError) as error:  # ValueError: the name has no form in the file system's encoding
        return str(error)


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


@functools.cache
def _private_folder() -> Path:
    """Returns a temporary folder of this process, which is deleted at its end."""
    folder = Path(tempfile.mkdtemp(prefix="minidynamo_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def code_dir() -> Path:
    """Returns the folder for the texts of this process: `config.debug_dir` if set, else in the cache folder."""
    if config.debug_dir:
        return Path(config.debug_dir)
    return cache_dir() / "generated" / f"run_{os.getpid()}"


# The suffix of a file during writing; it remains if the process is killed.
PART = ".part"
_KEPT_SECONDS = 7 * 24 * 3600

_LONGEST_STEM = 120  # most file systems allow names of 255 bytes

_serial = itertools.count()
_HOST_PROGRAM = re.compile(r"[/\\]\d{4,}_(host|dispatch)_\w+\.py$")
"""The paths of texts that may run the operations of a graph."""
_GENERATED = re.compile(r"[/\\]\d{4,}_(host|node)_\w+\.py$")
"""The paths of texts whose functions run operations, or are called by autograd."""

# Python's `warnings` and `logging` skip frames of files with these words in their names, to hide the import system.
# With `stacklevel=2`, a warning then names the line of the caller, not our generated caller.
_SKIPPED_BY_WARNINGS = "importlib_bootstrap"
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_CALLERS_OF_PROGRAM = frozenset(("dispatch", "frozen", "locked", "native", "residual"))
"""The kinds of texts whose functions call functions of the program."""


def write(kind: str, name: str, text: str, suffix: str = ".py", data: Any = None) -> str:
    """Writes `text` to a new file and returns its path.

    `kind` is a key of STAGES or another kind; `name` is the function or graph that the text belongs to; `data` is the
    object that the text shows. A folder that cannot be written does not stop a compile: the text is then in `linecache`
    only.
    """
    stem = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:_LONGEST_STEM] or "unnamed"
    folder = code_dir() / _SKIPPED_BY_WARNINGS if kind in _CALLERS_OF_PROGRAM else code_dir()
    path = folder / f"{next(_serial):04d}_{kind}_{stem}{suffix}"
    with contextlib.suppress(OSError):
        _write_directly(path, text.encode())
    # A modification time of None makes linecache.checkcache keep the entry, even if the file changes.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    texts = _collected.get()
    if texts is not None:
        texts.append(Artifact(kind, name, str(path), text, data))
    publish("artifact", kind, path=str(path), text=text)
    return str(path)


def _write_directly(path: Path, content: bytes) -> None:
    """Writes a file that only this process reads, without an atomic rename: a compile writes ten such files."""
    try:
        path.write_bytes(content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        _remove_old(cache_dir() / "generated")


def _remove_old(runs: Path) -> None:
    """Removes the texts of processes that have written none for a week."""
    before = time.time() - _KEPT_SECONDS
    for run in runs.glob("run_*"):
        with contextlib.suppress(OSError):
            if run.stat().st_mtime < before:
                shutil.rmtree(run, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically: readers see all of it or nothing. Raises OSError, and then leaves no file."""
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
    """Writes Python `source`, executes it in `namespace`, and returns the function defined under `function`."""
    execute(write(kind, name, source), source, namespace)
    loaded: types.FunctionType = namespace[function]
    return loaded


def execute(path: str, source: str, namespace: dict[str, Any]) -> None:
    """Executes Python `source`, which was written to `path`, in `namespace`."""
    # No future imports of this file: annotations are evaluated.
    exec(compile(source, path, "exec", dont_inherit=True), namespace)


def users_lines(error: BaseException) -> list[str]:
    """Returns the user's lines of the operations that raised `error`, for example `train.py:12 in f: y = table[i]`.

    The lines are the comments above the statement of a host program, which may be part of a dispatcher. An allocation
    has no user's line.
    """
    lines: list[str] = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _HOST_PROGRAM.search(frame.f_code.co_filename):
            lines = _comments_above(frame.f_code.co_filename, number)
    return lines


def _comments_above(path: str, number: int) -> list[str]:
    """Lists the comments above a statement of a host program."""
    *before, statement = linecache.getlines(path)[:number] or [""]
    depth = _depth(statement)
    above = itertools.takewhile(lambda line: _depth(line) >= depth, reversed(before))
    from_comment = itertools.dropwhile(lambda line: not _is_comment(line), above)
    comments = itertools.takewhile(_is_comment, from_comment)
    return [] if "= empty_" in statement else [line.strip().removeprefix("# ") for line in comments][::-1]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("# ")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def own_frames_hidden() -> tuple[type[BaseException], ...]:
    """Removes the frames of minidynamo from the traceback of the exception that is being handled; returns ().

    `except own_frames_hidden():` around a call of the program's code matches no exception. Python then raises the
    exception again without a new entry for this frame, unlike after `raise`. `MINIDYNAMO_VERBOSE=1` keeps all frames,
    and so does an error that minidynamo's own code raises by mistake.
    """
    error = sys.exc_info()[1]
    if error is None or config.verbose:
        return ()
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    raised_in = entries[-1].tb_frame.f_code.co_filename if entries else ""
    if raised_in.startswith(_PACKAGE) and not isinstance(error, MinidynamoError):
        return ()
    kept = None
    for entry in reversed(entries):
        if not is_own_file(entry.tb_frame.f_code.co_filename):
            entry.tb_next = kept
            kept = entry
    error.__traceback__ = kept
    return ()


def is_own_file(filename: str) -> bool:
    """Returns whether code is in the package, or was generated by minidynamo."""
    return filename.startswith(_PACKAGE) or _SKIPPED_BY_WARNINGS in filename or bool(_GENERATED.search(filename))


def skipped_by_warnings(function: Callable[P, R]) -> Callable[P, R]:
    """Returns `function`, which calls functions of the program; their warnings and log records skip its line."""
    if isinstance(function, types.FunctionType):
        function.__code__ = _renamed(function.__code__)
    return function


@functools.cache
def _renamed(code: types.CodeType) -> types.CodeType:
    return code.replace(co_filename=f"<minidynamo {_SKIPPED_BY_WARNINGS}>")
