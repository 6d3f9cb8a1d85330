"""Owns the files of stored graphs: written atomically, checked before use, evicted when they take too much room.

It does not know the contents of an entry. Layout, below `artifacts.cache_dir()`:

    graphs/<key>.json     a line with the hash of the rest, then the entry as JSON; mtime: time of the last use
    graphs/<key>.hits     one byte per use
    graphs/checked        empty; mtime: when a process last checked the total size

The libraries of kernels are stored next to `graphs/`, below `kernels/` (see `codegen/runtime/disk_cache.py`). Eviction
counts them, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.artifacts import PART, write_bytes
from minidynamo.core.events import notice
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic

_ABANDONED_SECONDS = 3600
_SECONDS_BETWEEN_CHECKS = 600
# Eviction frees down to this share of the limit: room for several new entries.
_KEPT_SHARE = 0.8


@record(frozen=True)
class StoredEntry:
    """The facts about an entry that need no reading."""

    name: str
    path: Path
    #: In bytes, of the JSON file.
    size: int
    #: The time of the last use, in seconds since the epoch.
    used: float
    hits: int


def folder() -> Path:
    """Returns the folder of the entries, which may not exist yet."""
    return artifacts.cache_dir() / "graphs"


def read(name: str) -> Any:
    """Returns the content of an entry, or None. A damaged entry is removed, after one notice."""
    path = folder() / f"{name}.json"
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    digest, _, body = raw.partition(b"\n")
    if digest == _digest(body):
        with contextlib.suppress(ValueError):
            return json.loads(body)
    discard(name, "its file is damaged")
    return None


def exists(name: str) -> bool:
    """Returns whether there is an entry, whole or damaged."""
    return (folder() / f"{name}.json").exists()


def discard(name: str, why: str) -> None:
    """Removes an entry that cannot be used, with a notice."""
    notice(Diagnostic("MD601", "a stored graph cannot be used and is compiled again", why=f"Entry {name}: {why}."))
    with contextlib.suppress(OSError):
        (folder() / f"{name}.json").unlink()


def write(name: str, content: Any) -> bool:
    """Stores an entry and makes room; returns whether that worked. A failure is reported once."""
    body = json.dumps(content, separators=(",", ":")).encode()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        write_bytes(folder() / f"{name}.json", b"\n".join((_digest(body), body)))
    except OSError as error:
        why = f"{error.strerror or error}: {folder()}. Every process compiles it anew."
        fix = "Make room there, or name another folder in MINIDYNAMO_CACHE_DIR."
        notice(Diagnostic("MD602", "a compiled graph could not be stored", why=why, fix=fix))
        return False
    if not _checked_recently():
        make_room(config.cache_limit_mb << 20)
    return True


def _checked_recently() -> bool:
    """Returns whether some process has checked the total size recently; if not, records that this process does now.

    In a large cache the check takes as long as many a compile.
    """
    stamp = folder() / "checked"
    with contextlib.suppress(OSError):
        if abs(time.time() - stamp.stat().st_mtime) < _SECONDS_BETWEEN_CHECKS:
            return True
    with contextlib.suppress(OSError):
        stamp.touch()
    return False


def count_use(name: str) -> None:
    """Counts a use of an entry; does nothing if the folder cannot be written."""
    with contextlib.suppress(OSError):
        os.utime(folder() / f"{name}.json")
        with (folder() / f"{name}.hits").open("ab") as file:
            file.write(b".")


def entries_of_program(program_digest: str) -> Iterator[str]:
    """Yields the names of the entries of one program, in any environment."""
    for path in sorted(folder().glob(f"{program_digest}-*.json")):
        yield path.stem


def entries() -> list[StoredEntry]:
    """Returns every entry, the most recently used first."""
    found = []
    for path in folder().glob("*.json"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append(
                StoredEntry(path.stem, path, status.st_size, status.st_mtime, _size(path.with_suffix(".hits")))
            )
    return sorted(found, key=lambda entry: (-entry.used, entry.name))


def make_room(limit: int) -> None:
    """Removes the least recently used files if graphs and kernels take more than `limit` bytes."""
    _remove_abandoned()
    units = [*_units()]
    total = sum(size for _, size, _ in units)
    if total <= limit:
        return
    for _, size, path in sorted(units, key=lambda unit: unit[0]):
        if total <= limit * _KEPT_SHARE:
            break
        _remove(path)
        total -= size


def clear() -> tuple[int, int]:
    """Removes all entries and kernels, and texts left by ended processes; returns the number of files and bytes."""
    count = size = 0
    for part in ("graphs", "kernels", "generated"):
        for path in (artifacts.cache_dir() / part).rglob("*"):
            if path.is_file():
                count, size = count + 1, size + _size(path)
        shutil.rmtree(artifacts.cache_dir() / part, ignore_errors=True)
    return count, size


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _units() -> Iterator[tuple[float, int, Path]]:
    """Yields last use, bytes and path of everything that can be removed: entries, and folders of a kernel library."""
    for entry in entries():
        yield entry.used, entry.size, entry.path
    for kernels in (artifacts.cache_dir() / "kernels").glob("*"):
        files = [path for path in kernels.glob("*") if path.is_file()]
        with contextlib.suppress(OSError):
            times = [path.stat().st_mtime for path in files if path.suffix == ".so"]
            yield max(times, default=kernels.stat().st_mtime), sum(map(_size, files)), kernels


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
            path.with_suffix(".hits").unlink(missing_ok=True)


def _remove_abandoned() -> None:
    """Removes partial files of killed processes."""
    before = time.time() - _ABANDONED_SECONDS
    for path in folder().glob(f"*{PART}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
