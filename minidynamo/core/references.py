"""Owns weak references of minidynamo's own to the user's objects: they tell nobody of a death.

Which weak references are a program's is decided in `guards/deaths.py`, by the type that stands here.
"""

from __future__ import annotations

import weakref
from typing import Any


class Reference(weakref.ref[Any]):
    """A weak reference that does not count as somebody who watches an object's death."""

    __slots__ = ()
