"""Owns what a lazy property of `torch.distributions` is on its class: a property, which is made anew at each look.

What reading it from an instance means is a polyfill.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch.distributions.utils import lazy_property

from minidynamo.guards.source import Constant
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import ObjectVariable

_shown: WeakKeyDictionary[object, object] = WeakKeyDictionary()


def on_the_class(lazy: Any) -> object:
    """What `cls.name` gives for a lazy property: one object for good, since nobody asks which one it is."""
    if lazy not in _shown:
        _shown[lazy] = lazy.__get__(None, None)
    return _shown[lazy]


@registry.function(on_the_class)
def _on_the_class(tx: Tracer, lazy: VariableTracker) -> VariableTracker:
    value = lazy.value if isinstance(lazy, ObjectVariable) else None
    if not isinstance(value, lazy_property):
        tx.break_graph("MD211", "a lazy property is made and read from its class", why="Only Python makes it.")
    shown = on_the_class(value)
    return tx.wrap(shown, Constant(shown, "lazy_property"))
