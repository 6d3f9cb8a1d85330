"""Tests of minidynamo/tracer/records/side_effects.py."""

import pytest

from minidynamo.guards.source import Local
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, SideEffects
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.callables import BuiltinVariable, CellVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable

ONE, TWO = ConstantVariable(1), ConstantVariable(2)


def _object() -> ObjectVariable:
    return ObjectVariable(object(), object, source=Local("m"))


def test_every_effect_is_announced_and_can_be_refused() -> None:
    effects, seen = SideEffects(), []
    effects.on_effect = seen.append
    items = ListVariable([])
    effects.contents_changed(items)
    effects.contents_changed(items)  # adds nothing to the journal
    effects.set_attr(_object(), "a", ONE)
    effects.delete_attr(_object(), "a")
    effects.set_class_attr(ClassVariable(SideEffects), "a", ONE)
    effects.set_global({}, "g", TWO)
    effects.set_cell(CellVariable(), None)
    effects.record_call(BuiltinVariable(print), ONE)
    assert [effect for effect in seen if effect in effects.journal] == effects.journal
    assert len(seen) == len(effects.journal) + 1 == 8

    def refuse(effect: object) -> None:
        raise ValueError

    effects.on_effect = refuse
    with pytest.raises(ValueError):
        effects.set_cell(CellVariable(), None)
    assert len(effects.journal) == 7


def test_what_is_written_over_does_not_last() -> None:
    effects, obj, other, cell = SideEffects(), _object(), _object(), CellVariable()
    for value in (ONE, TWO):
        effects.set_attr(obj, "a", value)
        effects.set_attr(other, "a", value)
        effects.set_attr(obj, "b", value)
        effects.set_cell(cell, value)
        effects.set_global({}, "g", value)  # a new module each time
    assert [getattr(effect, "name", None) for effect in effects.final_writes()] == ["a", "a", "b", None, "g", "g"]
    assert [getattr(effect, "value", None) for effect in effects.final_writes()] == [TWO] * 4 + [ONE, TWO]


def test_what_a_call_may_see_lasts() -> None:
    effects, obj = SideEffects(), _object()
    effects.set_attr(obj, "a", ONE)
    effects.record_call(BuiltinVariable(print), ONE)
    effects.set_attr(obj, "a", TWO)
    assert effects.final_writes() == effects.journal


def test_what_is_deleted_in_between_gets_a_place_behind_others() -> None:
    effects, obj = SideEffects(), _object()
    effects.set_attr(obj, "a", ONE)
    effects.set_attr(obj, "b", ONE)
    effects.delete_attr(obj, "a")
    effects.set_attr(obj, "a", ONE)
    effects.set_attr(obj, "a", TWO)
    kinds = [(type(effect), getattr(effect, "name", "")) for effect in effects.final_writes()]
    assert kinds == [(AttrSet, "a"), (AttrSet, "b"), (AttrDeleted, "a"), (AttrSet, "a")]


def test_what_does_more_than_keep_a_value_is_not_left_out() -> None:
    class Box:
        pass

    effects, obj = SideEffects(), ObjectVariable(Box(), Box, source=Local("m"))
    for cls in (ClassVariable(Box), ClassVariable(Box)):
        effects.set_attr(obj, "__class__", cls)
    assert effects.final_writes() == effects.journal
