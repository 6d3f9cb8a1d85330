"""Owns the polyfills of `torch.distributions`: branches on values, written as operations of a graph.

Validation that only raises is not here: the graph checks it (`tracer/frames/runtime_asserts.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# No library function inside its own polyfill.

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from minidynamo import compat
from minidynamo.guards.source import Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace, polyfill
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import ObjectVariable


@polyfill(lazy_property.__get__)
def lazy_property_get(self, instance, obj_type=None):
    if instance is None:
        return class_attribute(self)
    with torch.enable_grad():
        value = self.wrapped(instance)
    setattr(instance, self.wrapped.__name__, value)
    return value


@polyfill(type(constraints.symmetric).check)
def is_symmetric(self, value):
    if value.shape[-2] != value.shape[-1]:
        cannot_trace("a constraint on matrices that are not square", "its result depends on the number of matrices")
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


@polyfill(type(constraints.positive_definite).check)
def is_positive_definite(self, value):
    symmetric = is_symmetric(self, value)
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)


@polyfill(compat.infer_size)
def broadcast_size(one, other):
    sizes = []
    for left, right in itertools.zip_longest(reversed(one), reversed(other), fillvalue=1):
        if left != right and left != 1 and right != 1:
            cannot_trace("a KL divergence of batches that do not fit", "it raises RuntimeError")
        sizes.append(right if left == 1 else left)
    sizes.reverse()
    return torch.Size(sizes)


_results: WeakKeyDictionary[object, object] = WeakKeyDictionary()


def class_attribute(lazy: Any) -> object:
    """Returns the result of `cls.name` for a lazy property; always the same object, because its identity is not
    observed."""
    if lazy not in _results:
        _results[lazy] = lazy.__get__(None, None)
    return _results[lazy]


@registry.function(class_attribute)
def _on_the_class(tx: Tracer, lazy: VariableTracker) -> VariableTracker:
    value = lazy.value if isinstance(lazy, ObjectVariable) else None
    if not isinstance(value, lazy_property):
        tx.break_graph("MD211", "a lazy property is created and read from its class", why="Only Python creates it.")
    result = class_attribute(value)
    return tx.wrap(result, Constant(result, "lazy_property"))
