"""Owns the built libraries on disk: found by the content they were built from, checked before use, shared by processes.

It does not build anything and does not know what a library holds. Layout, below `artifacts.cache_dir()`:

    kernels/<key>/key.txt               the text that the key is the hash of
    kernels/<key>/kernels.cpp           the source, where the compiler's messages point to
    kernels/<key>/<digest>.so           the library; its name is the hash of its own bytes
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
# Below this no compiler can be expected to finish.
ROOM_BYTES = 16 << 20


def key_of(text: str) -> str:
    """The cache key of the readable `text` that says everything an entry depends on."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def entry_folder(key: str) -> Path:
    """Where the entry `key` lives, whether it exists or not."""
    return artifacts.cache_dir() / "kernels" / key


def fetch(key_text: str, build: Callable[[Path], None]) -> Path:
    """The library for `key_text`: the stored one if it is whole, else what `build(path)` writes to `path`.

    Where the cache cannot be written the library is built in a temporary folder that lives as long as the process.
    Errors of `build` are passed on and leave no entry behind.
    """
    folder = entry_folder(key_of(key_text))
    stored = _find(folder)
    if stored is None and _writable(folder):
        # The folder may be removed meanwhile, its disk be full, or its file system know no locks.
        with contextlib.suppress(OSError, NotImplementedError):
            stored = _build_once(folder, key_text, build)
    if stored is None:
        return _build_for_now(build)
    with contextlib.suppress(OSError):
        os.utime(stored)  # what was used longest ago makes room for others
    return stored


def _build_once(folder: Path, key_text: str, build: Callable[[Path], None]) -> Path:
    # Imported where something is built, which takes longer.
    import filelock  # noqa: PLC0415

    with filelock.FileLock(folder / "lock", timeout=LOCK_TIMEOUT_SECONDS):
        stored = _find(folder)  # another process may have built it meanwhile
        if stored is None:
            write_bytes(folder / "key.txt", key_text.encode())
            stored = _build_into(folder, build)
    return stored


def _build_for_now(build: Callable[[Path], None]) -> Path:
    """In a temporary folder; one where the build failed stays, since the message of the error points there."""
    folder = Path(tempfile.mkdtemp(prefix="minidynamo_"))
    library = _build_into(folder, build)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return library


def discard(library: Path) -> None:
    """Forget a library that did not load, so that the next `fetch` builds it again."""
    with contextlib.suppress(OSError):
        library.unlink()


def entries() -> Iterator[tuple[str, Path]]:
    """Key and library of every whole entry, in no order."""
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
        discard(library)  # cut short or altered: loading it could crash the process
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
