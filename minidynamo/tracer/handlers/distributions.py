"""Owns class access to lazy properties of `torch.distributions`: each access creates a new property object.

Instance access is a polyfill.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch.distributions.utils import lazy_property

from minidynamo.guards.source import Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import ObjectVariable

_shown: WeakKeyDictionary[object, object] = WeakKeyDictionary()


def class_attribute(lazy: Any) -> object:
    """Returns the result of `cls.name` for a lazy property; always the same object, because its identity is not
    observed."""
    if lazy not in _shown:
        _shown[lazy] = lazy.__get__(None, None)
    return _shown[lazy]


@registry.function(class_attribute)
def _on_the_class(tx: Tracer, lazy: VariableTracker) -> VariableTracker:
    value = lazy.value if isinstance(lazy, ObjectVariable) else None
    if not isinstance(value, lazy_property):
        tx.break_graph("MD211", "a lazy property is made and read from its class", why="Only Python makes it.")
    shown = class_attribute(value)
    return tx.wrap(shown, Constant(shown, "lazy_property"))
