"""Owns the delay of collections of reference cycles, by Python's garbage collector.

It frees nothing itself; values of the user's program die by their reference counts.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collections_delayed() -> Iterator[None]:
    """Delays collections until after the block.

    Imports and compiles create many objects, so Python would often visit all objects of the process, with those of
    torch, and free little: a sixth of the time of a compile, a third of the time of `import minidynamo`.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
