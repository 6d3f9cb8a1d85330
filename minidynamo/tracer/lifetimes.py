"""Owns what a program can see of the death of objects: who is told when one dies, and whether one may be dead by now.

While a frame is traced its real values are all held, so nothing dies then that dies while the program runs. Where that
can be seen, the graph is cut, and Python lets go. Making objects with `__del__` is up to `construct.py`.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from minidynamo.guards.source import Local, Source
from minidynamo.tracer.constants import is_constant_value
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.side_effects import AttrSet, Called, CellSet, Effect, GlobalSet
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable

_LASTING = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_VALUES = (ConstantVariable, NumberVariable)


def is_noticed(value: object) -> bool:
    """Whether code runs when a value dies: its own, or that of a weak reference."""
    if not _is_referable(value):
        return hasattr(type(value), "__del__") and not isinstance(value, torch.Tensor)
    called = any(reference.__callback__ is not None for reference in _watchers(value))
    return called or hasattr(type(value), "__del__")


def _watchers(value: object) -> list[weakref.ref[Any]]:
    """The weak references to a value, without those by which torch keeps its own books, of all modules, for example."""
    found: list[weakref.ref[Any]] = weakref.getweakrefs(value)
    return [w for w in found if str(getattr(w.__callback__, "__module__", "")).partition(".")[0] != "torch"]


def _is_referable(value: object) -> bool:
    plain = is_constant_value(value) or isinstance(value, (*_LASTING, torch.Tensor))
    return not plain and type(value).__weakrefoffset__ != 0


def lives_on(frame: Frame, variable: VariableTracker) -> bool:
    """Whether somebody can see that a local of the frame is alive although the frame needs it no more."""
    value = _real(frame, variable)
    return _is_referable(value) and bool(_watchers(value))


def _real(frame: Frame, variable: VariableTracker) -> object:
    found = getattr(variable, "value", None)
    return frame.arrived.get(variable.source) if found is None and variable.source is not None else found


def let_go(frame: Frame, name: str) -> bool:
    """Note that a local is bound anew or deleted; whether this ends the life of a value, and code may run that sees it.

    Only what a root frame was entered with, and parts of that, can die: everything else is held elsewhere, or new.
    """
    value = frame.local_slots.get(name)
    if frame is not frame.tx.frames[0] or value is None or value.source is None:
        return False
    held = [other.source for other in frame.held()]
    if not isinstance(_root(value.source), Local) or held.count(value.source) > 1:
        return False
    if any(place in held for place in value.source.bases()) and not list(_replaced(frame.tx)):
        return False  # what it is a part of still has it
    real = _real(frame, value)
    frame.lost.append(value if real is None else real)
    return is_noticed(real)


def _root(source: Source) -> Source:
    return _places(source)[-1]


def may_be_gone(tx: Tracer, is_tensor: bool) -> bool:
    """Whether something that held an object when the frame was entered may have let go of it."""
    root = tx.frames[0]
    assert isinstance(root, Frame)
    held = {place for frame in tx.frames for value in frame.held() if value.source for place in _places(value.source)}
    consumed = [real for place, real in root.arrived.items() if place not in held]
    return any(_may_hold(value, is_tensor) for value in (*root.lost, *consumed, *_replaced(tx)))


def _places(source: Source) -> tuple[Source, ...]:
    return (source, *source.bases())


def _may_hold(value: object, is_tensor: bool) -> bool:
    """Whether a value can be all that keeps another object (a tensor?) alive, or be that object."""
    if is_constant_value(value) or isinstance(value, (*_LASTING, *_VALUES)):
        return False
    if type(value) in (dict, tuple) and not value:
        return False
    return is_tensor or not isinstance(value, (torch.Tensor, TensorVariable))


def _replaced(tx: Tracer) -> Iterator[Any]:
    """What others held before the effects of the program so far; the container itself where that is not known."""
    for effect in tx.side_effects.journal:
        target = getattr(effect, "container", None) or getattr(effect, "obj", None) or getattr(effect, "cell", None)
        is_new = target is not None and target.source is None and not _is_real(target)
        if not is_new and not isinstance(effect, Called):
            yield _old_value(effect)


def _is_real(target: object) -> bool:
    return isinstance(target, CellVariable) and target.cell is not None


def _old_value(effect: Effect) -> Any:
    """What an effect on something from outside replaces there, if that is seen at once; else the effect."""
    if isinstance(effect, AttrSet) and isinstance(effect.obj, ObjectVariable):
        names = getattr(effect.obj.value, "__dict__", None)
        return names.get(effect.name) if type(names) is dict else effect
    if isinstance(effect, GlobalSet):
        return effect.namespace.get(effect.name)
    if isinstance(effect, CellSet) and effect.cell.cell is not None:
        try:
            return effect.cell.cell.cell_contents
        except ValueError:
            return None
    return effect
