"""Owns minidynamo's weak references to user objects.

`tracer/capture/deaths.py` uses the type to separate them from a program's weak references.
"""

from __future__ import annotations

import weakref
from typing import Any


class Reference(weakref.ref[Any]):
    """A weak reference that does not count as a finalizer of its object."""

    __slots__ = ()
