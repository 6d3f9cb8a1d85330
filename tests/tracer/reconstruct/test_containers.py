"""Containers with their contents, new and replaced."""

from __future__ import annotations

import collections

import pytest

from minidynamo.core.names import Namespace
from minidynamo.errors import InternalError
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.side_effects import SideEffects
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


def test_a_set_without_history_is_no_value_of_the_program():
    made = SetVariable(dict.fromkeys(key_of(ConstantVariable(value)) for value in (1, 2)))
    with pytest.raises(InternalError, match="MD260"):
        Rebuilder(Namespace(), SideEffects(), {}, [made]).value(made)
