"""Containers with their contents, new and replaced."""

import collections

from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import DictVariable, DictViewVariable
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
