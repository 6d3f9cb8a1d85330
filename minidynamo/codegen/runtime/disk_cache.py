"""Owns the built libraries on disk: found by the content of their source, checked before use, shared by processes.

This module builds nothing and does not know the content of a library. Layout, below `artifacts.cache_dir()`:

    kernels/<key>/key.txt               the text whose hash is the key
    kernels/<key>/kernels.cpp           the source, as named in the compiler's messages
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
from minidynamo.core.artifacts import PART, write_bytes

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

    If the cache cannot be written, the library is built in a temporary folder that is deleted at the end of the
    process. Errors of `build` propagate and leave no entry.
    """
    folder = entry_folder(key_of(key_text))
    stored = _find(folder)
    if stored is None and _writable(folder):
        # The folder may be removed meanwhile, its disk be full, or its file system lack locks.
        with contextlib.suppress(OSError, NotImplementedError):
            stored = _build_once(folder, key_text, build)
    if stored is None:
        return _build_temporary(build)
    with contextlib.suppress(OSError):
        os.utime(stored)  # the least recently used entries are deleted first
    return stored


def _build_once(folder: Path, key_text: str, build: Callable[[Path], None]) -> Path:
    # Imported only for a build, which takes longer than the import.
    import filelock  # noqa: PLC0415

    with filelock.FileLock(folder / "lock", timeout=LOCK_TIMEOUT_SECONDS):
        stored = _find(folder)  # another process may have built it meanwhile
        if stored is None:
            write_bytes(folder / "key.txt", key_text.encode())
            stored = _build_into(folder, build)
    return stored


def _build_temporary(build: Callable[[Path], None]) -> Path:
    """Builds in a temporary folder. The folder of a failed build stays, because the error message names it."""
    folder = Path(tempfile.mkdtemp(prefix="minidynamo_"))
    library = _build_into(folder, build)
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


def _writable(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= ROOM_BYTES
    except OSError:
        return False


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


def _build_into(folder: Path, build: Callable[[Path], None]) -> Path:
    descriptor, name = tempfile.mkstemp(dir=folder, suffix=PART)
    os.close(descriptor)
    part = Path(name)
    try:
        build(part)
        library = folder / f"{_digest(part)}.so"
        os.replace(part, library)
    finally:
        part.unlink(missing_ok=True)
    return library
