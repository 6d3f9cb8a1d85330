"""Owns minidynamo's weak references to user objects, which are no finalizers.

`guards/deaths.py` uses the type to separate them from a program's weak references.
"""

from __future__ import annotations

import weakref
from typing import Any


class Reference(weakref.ref[Any]):
    """A weak reference that does not count as an observer of an object's death."""

    __slots__ = ()
