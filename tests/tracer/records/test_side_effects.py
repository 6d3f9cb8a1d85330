"""Tests of minidynamo/tracer/records/side_effects.py."""

import pytest

from minidynamo.guards.source import Local
from minidynamo.tracer.records.side_effects import (
    DELETED,
    UNKNOWN,
    AttrDeleted,
    AttrSet,
    Called,
    CellSet,
    ContentsChanged,
    GlobalSet,
    SideEffects,
)
from minidynamo.variables.callables import BuiltinVariable, CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable

ONE, TWO = ConstantVariable(1), ConstantVariable(2)


def _object() -> ObjectVariable:
    return ObjectVariable(object(), object, source=Local("m"))


def test_the_journal_keeps_program_order() -> None:
    effects, obj, cell = SideEffects(), _object(), CellVariable()
    namespace: dict[str, object] = {}
    items = ListVariable([])
    effects.set_attr(obj, "a", ONE)
    effects.contents_changed(items)
    effects.set_global(namespace, "g", TWO)
    effects.set_cell(cell, None)
    effects.record_call(BuiltinVariable(print), ONE, end=TWO)
    effects.delete_attr(obj, "a")
    kinds = [type(effect) for effect in effects.journal]
    assert kinds == [AttrSet, ContentsChanged, GlobalSet, CellSet, Called, AttrDeleted]
    called = effects.journal[4]
    assert isinstance(called, Called)
    assert called.args == (ONE,)
    assert called.kwargs == {"end": TWO}


def test_reads_see_the_last_write() -> None:
    effects, obj, other = SideEffects(), _object(), _object()
    assert effects.attr(obj, "a") is UNKNOWN
    effects.set_attr(obj, "a", ONE)
    effects.set_attr(obj, "a", TWO)
    assert effects.attr(obj, "a") is TWO
    assert effects.attr(other, "a") is UNKNOWN
    effects.delete_attr(obj, "a")
    assert effects.attr(obj, "a") is DELETED
    assert effects.written_attributes(obj) == {"a": DELETED}
    assert effects.written_attributes(other) == {}


def test_globals_are_told_apart_by_module() -> None:
    effects = SideEffects()
    first: dict[str, object] = {}
    second: dict[str, object] = {}
    effects.set_global(first, "g", ONE)
    assert effects.read_global(first, "g") is ONE
    assert effects.read_global(second, "g") is UNKNOWN
    effects.set_global(first, "g", None)
    assert effects.read_global(first, "g") is DELETED


def test_a_container_is_reported_once() -> None:
    effects, items = SideEffects(), ListVariable([])
    assert not effects.is_changed(items)
    effects.contents_changed(items)
    effects.contents_changed(items)
    assert effects.is_changed(items)
    assert len(effects.journal) == 1


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
