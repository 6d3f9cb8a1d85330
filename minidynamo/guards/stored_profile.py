"""Owns the profile of a job on disk: sizes that varied in one process are symbolic in the next from the first compile.

The file is readable JSON in the cache folder, one per job and rank. `config.profile` names the job; without a name
nothing here is called. `profile.py` defines the meaning of a profile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from minidynamo.compat import is_rank
from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.events import notice
from minidynamo.errors import Diagnostic, UnknownName
from minidynamo.guards.profile import FrameProfile, joined

_FORMAT = 1
_VARIES = "?"
_LOCK_TIMEOUT_SECONDS = 10  # writing takes milliseconds; a process that hangs must not block the others


def path_of_job() -> Path:
    """Returns the file of the running job. Raises UnknownName for a name that no file can have."""
    job = config.profile
    if not re.fullmatch(r"[\w.-]+", job) or job.startswith("."):
        what = f"the job name {job!r} is not a valid file name"
        raise UnknownName(Diagnostic("MD603", what, fix="Use letters, digits, dashes and dots."))
    rank = f".rank{torch.distributed.get_rank()}" if is_rank() else ""
    return artifacts.cache_dir() / "profiles" / f"{job}{rank}.json"


def recall(fn: types.FunctionType, point: str, profile: FrameProfile) -> None:
    """Adds the values seen by earlier processes of the job to the profile of a frame point of `fn`."""
    path = path_of_job()
    frame = _read(path).get(code_key(fn), {})
    profile.add(_decoded(path, frame.get("points", {}).get(point, {})))


def remember(fn: types.FunctionType, point: str, profile: FrameProfile) -> None:
    """Stores the values seen by this process, merged with the stored values."""
    path = path_of_job()
    code = fn.__code__
    name = f"{fn.__qualname__} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    key = code_key(fn)
    try:
        with _locked(path):
            frames = _read(path)
            frame = frames.setdefault(key, {"name": name, "points": {}})
            stored = frame["points"].get(point, {})
            frame["points"][point] = new = _encoded(joined(profile, _decoded(path, stored)))
            if new != stored:
                text = json.dumps({"format": _FORMAT, "frames": frames}, indent=1, sort_keys=True)
                artifacts.write_bytes(path, text.encode())
    except (OSError, NotImplementedError) as error:  # includes a lock timeout, or a file system without locks
        _warn(path, "cannot be written", error)


def code_key(fn: types.FunctionType) -> str:
    """Returns a key for a function, the same in every process: a hash of the file, the line, the code and the
    closure.
    """
    code = fn.__code__
    try:
        contents = hashlib.sha256(Path(code.co_filename).read_bytes()).hexdigest()
    except OSError:  # code without a file
        contents = ""
    parts = [contents, str(code.co_firstlineno), fn.__qualname__, *_code_parts(code), *_closure_parts(fn, 3)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _code_parts(code: types.CodeType) -> Iterator[str]:
    """Yields the parts of a code object that are the same in every process."""
    yield code.co_code.hex()
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)


def _closure_parts(fn: types.FunctionType, depth: int) -> Iterator[str]:
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            value = cell.cell_contents
            yield type(value).__qualname__
            if isinstance(value, types.FunctionType) and depth:
                yield from (value.__qualname__, *_code_parts(value.__code__), *_closure_parts(value, depth - 1))


# The file


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"it has format {content['format']}, not {_FORMAT}")
        frames: dict[str, Any] = content["frames"]
        return frames
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _warn(path, "cannot be used, and begins anew", error)
        return {}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Prevents other processes of the job from changing the file during the block. Raises OSError if it cannot be
    written.
    """
    # Imported here, because most processes have no job name.
    import filelock  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_SECONDS):
        yield


def _warn(path: Path, what: str, error: Exception) -> None:
    fix = "Remove the file, or name another job in config.profile."
    notice(Diagnostic("MD603", f"the profile {path.name} {what}", why=f"{type(error).__name__}: {error}", fix=fix))


def _encoded(profile: FrameProfile) -> dict[str, Any]:
    def texts(facts: tuple[Any, ...]) -> list[Any]:
        return [_VARIES if fact is None else fact for fact in facts]

    tensors = {name: {"size": texts(size), "stride": texts(stride)} for name, (size, stride) in profile.tensors.items()}
    numbers = {name: _VARIES if value is None else value for name, value in profile.numbers.items()}
    return {"tensors": tensors, "numbers": numbers}


def _decoded(path: Path, stored: dict[str, Any]) -> FrameProfile:
    def facts(texts: list[Any]) -> tuple[Any, ...]:
        return tuple(None if text == _VARIES else text for text in texts)

    try:
        tensors = {name: (facts(t["size"]), facts(t["stride"])) for name, t in stored.get("tensors", {}).items()}
        numbers = {name: None if value == _VARIES else value for name, value in stored.get("numbers", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        _warn(path, "cannot be used, and begins anew", error)
        return FrameProfile()
    return FrameProfile(None, numbers, tensors)
