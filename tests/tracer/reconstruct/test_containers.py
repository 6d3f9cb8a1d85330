"""Containers with their contents, new and replaced."""

from __future__ import annotations

import collections

from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import DictVariable, DictViewVariable, SetVariable
from tests.tracer.reconstruct.rebuilt import C, key, rebuilt


def test_defaultdicts_keep_their_factory() -> None:
    made = rebuilt(DictVariable({key("a"): C(1)}, collections.defaultdict, BuiltinVariable(list)))
    assert made == {"a": 1}
    assert made["b"] == []
    assert rebuilt(DictVariable({}, collections.defaultdict)).default_factory is None


def test_views_are_live() -> None:
    mapping = DictVariable({key("a"): C(1)})
    view, made = rebuilt(DictViewVariable(mapping, "values"), mapping)
    made["b"] = 2
    assert list(view) == [1, 2]


def test_sets_are_rebuilt_from_their_items():
    made = SetVariable(dict.fromkeys(key_of(ConstantVariable(value)) for value in (1, 2)))
    assert rebuilt(made) == {1, 2} and type(rebuilt(made)) is set
