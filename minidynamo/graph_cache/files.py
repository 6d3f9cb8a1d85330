"""Owns the files of stored graphs: written at once or not at all, checked before use, dropped when there are too many.

It does not know what an entry holds. Layout, below `artifacts.cache_dir()`:

    graphs/<key>.json     a line with the hash of the rest, then the entry as JSON; when it was used last is its time
    graphs/<key>.hits     one byte for each time it was used
    graphs/looked         empty; its time is when a process has looked last whether there are too many

The libraries of kernels lie beside them, below `kernels/` (see `codegen/runtime/disk_cache.py`), and count as well when
room has to be made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidynamo.config import config
from minidynamo.core import artifacts
from minidynamo.core.artifacts import PART, write_bytes
from minidynamo.core.events import notice
from minidynamo.errors import Diagnostic

_ABANDONED_SECONDS = 3600
_BETWEEN_LOOKS_SECONDS = 600
# What eviction leaves of the limit, so that it does not run for every entry.
_KEPT_SHARE = 0.8


@dataclass(frozen=True)
class StoredEntry:
    """What is known of an entry without reading it. `used` is the time of its last use, in seconds."""

    name: str
    path: Path
    size: int
    used: float
    hits: int


def folder() -> Path:
    """Where the entries lie, whether there are any or not."""
    return artifacts.cache_dir() / "graphs"


def read(name: str) -> Any:
    """The content of an entry, or None. A damaged one is removed, after one notice."""
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
    """Whether there is an entry, whole or damaged."""
    return (folder() / f"{name}.json").exists()


def discard(name: str, why: str) -> None:
    """Remove an entry that cannot be used, and say so."""
    notice(Diagnostic("MD601", "a stored graph cannot be used and is compiled again", why=f"Entry {name}: {why}."))
    with contextlib.suppress(OSError):
        (folder() / f"{name}.json").unlink()


def write(name: str, content: Any) -> bool:
    """Store an entry and make room for it; whether that worked. What stands in the way is said once."""
    body = json.dumps(content, separators=(",", ":")).encode()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        write_bytes(folder() / f"{name}.json", b"\n".join((_digest(body), body)))
    except OSError as error:
        why = f"{error.strerror or error}: {folder()}. Every process compiles it anew."
        fix = "Make room there, or name another folder in MINIDYNAMO_CACHE_DIR."
        notice(Diagnostic("MD602", "a compiled graph could not be stored", why=why, fix=fix))
        return False
    if not _looked_lately():
        make_room(config.cache_limit_mb << 20)
    return True


def _looked_lately() -> bool:
    """Whether some process has looked for room lately, else that this one does: where there is much to look at, that
    takes as long as many a compile."""
    stamp = folder() / "looked"
    with contextlib.suppress(OSError):
        if abs(time.time() - stamp.stat().st_mtime) < _BETWEEN_LOOKS_SECONDS:
            return True
    with contextlib.suppress(OSError):
        stamp.touch()
    return False


def note_use(name: str) -> None:
    """Count a use of an entry; nothing happens where the folder cannot be written."""
    with contextlib.suppress(OSError):
        os.utime(folder() / f"{name}.json")
        with (folder() / f"{name}.hits").open("ab") as file:
            file.write(b".")


def alike(program_digest: str) -> Iterator[str]:
    """The names of the entries of one program, whatever compiled it."""
    for path in sorted(folder().glob(f"{program_digest}-*.json")):
        yield path.stem


def entries() -> list[StoredEntry]:
    """Every entry, the one that was used last first."""
    found = []
    for path in folder().glob("*.json"):
        with contextlib.suppress(OSError):
            facts = path.stat()
            found.append(StoredEntry(path.stem, path, facts.st_size, facts.st_mtime, _size(path.with_suffix(".hits"))))
    return sorted(found, key=lambda entry: (-entry.used, entry.name))


def make_room(limit: int) -> None:
    """Remove what was used longest ago until graphs and kernels take less than `limit` bytes, if they take more."""
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
    """Remove all entries and kernels, and the texts that processes have left behind; how many files and bytes."""
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
    """Last use, bytes and path of everything that can be removed: entries, and folders of a kernel library."""
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
    """Remove what processes that were killed have left half written."""
    before = time.time() - _ABANDONED_SECONDS
    for path in folder().glob(f"*{PART}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
