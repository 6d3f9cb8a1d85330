"""Owns the built libraries on disk: found by the content of their source, checked before use, shared by processes.

This module builds nothing and does not know the content of a library. Layout, below `artifacts.cache_dir()`:

    kernels/<key>/key.txt               the text whose hash is the key
    kernels/<key>/<digest>.so           the library, named by the hash of its bytes
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from minidynamo.core import artifacts
from minidynamo.core.artifacts import write_bytes

LOCK_TIMEOUT_SECONDS = 600
# With less free space a compiler cannot be expected to finish.
ROOM_BYTES = 16 << 20


def key_of(text: str) -> str:
    """Returns the cache key for `text`, a readable text of everything that an entry depends on."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def entry_folder(key: str) -> Path:
    """Returns the folder of the entry `key`, which need not exist."""
    return artifacts.cache_dir() / "kernels" / key


def fetch(key_text: str, build: Callable[[Path], None]) -> Path:
    """Returns the library for `key_text`: the stored library if it is intact, else the output of `build(path)`.

    If the cache cannot hold the library, it stays in a temporary folder that is deleted at the end of the process.
    Errors of `build` propagate and leave no entry.
    """
    folder = entry_folder(key_of(key_text))
    library = _find(folder)
    if library is None:
        return _build_once(folder, key_text, build) if _can_hold_libraries(folder) else build_temporary(build)
    with contextlib.suppress(OSError):
        os.utime(library)  # the least recently used entries are deleted first
    return library


def _build_once(folder: Path, key_text: str, build: Callable[[Path], None]) -> Path:
    # Imported only for a build, which takes longer than the import.
    import filelock  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):  # some file systems have no locks
            stack.enter_context(filelock.FileLock(folder / "lock", timeout=LOCK_TIMEOUT_SECONDS))
        # Another process may have built it meanwhile.
        return _find(folder) or _stored(folder, key_text, build_temporary(build))


def _stored(folder: Path, key_text: str, library: Path) -> Path:
    """Moves a library from its temporary folder into an entry. Returns the path, which is the old one if the disk is
    full or the entry has been cleared meanwhile."""
    try:
        write_bytes(folder / "key.txt", key_text.encode())
        write_bytes(folder / library.name, library.read_bytes())
    except OSError:
        return library
    shutil.rmtree(library.parent, ignore_errors=True)
    return folder / library.name


def build_temporary(build: Callable[[Path], None]) -> Path:
    """Builds in a temporary folder, which no other process clears during the build.

    The folder of a failed build stays, because the error message names it.
    """
    folder = Path(tempfile.mkdtemp(prefix="minidynamo_"))
    part = folder / "library.part"
    build(part)
    library = folder / f"{_digest(part)}.so"
    os.replace(part, library)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return library


def discard(library: Path) -> None:
    """Deletes a library that did not load; the next `fetch` rebuilds the library."""
    with contextlib.suppress(OSError):
        library.unlink()


def entries() -> Iterator[tuple[str, Path]]:
    """Yields key and library of every intact entry, in no order."""
    for folder in (artifacts.cache_dir() / "kernels").glob("*"):
        library = _find(folder)
        if library is not None:
            yield folder.name, library


def _can_hold_libraries(folder: Path) -> bool:
    """Returns whether `folder`, which is made if missing, is writable, has room, and allows to run what it holds."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    runs = not system.f_flag & getattr(os, "ST_NOEXEC", 0)
    return runs and os.access(folder, os.W_OK) and system.f_bavail * system.f_frsize >= ROOM_BYTES


def _find(folder: Path) -> Path | None:
    for library in folder.glob("*.so"):
        try:
            if _digest(library) == library.stem:
                return library
        except OSError:
            continue
        discard(library)  # truncated or altered: loading it could crash the process
    return None


def _digest(library: Path) -> str:
    return hashlib.blake2b(library.read_bytes(), digest_size=16).hexdigest()
