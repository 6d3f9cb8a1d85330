"""Containers with their contents, new and replaced."""

import collections
from typing import Any

import pytest

from minidynamo.core.names import Namespace
from minidynamo.tracer.reconstruct.containers import refill
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BuiltinVariable,
)
from minidynamo.variables.containers import (
    DictVariable,
    DictViewVariable,
    ListVariable,
)
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


@pytest.mark.parametrize(
    ("variable", "before", "after"),
    [
        (ListVariable([C(1)]), [5, 6], [1]),
        (ListVariable([]), [5], []),
        (ListVariable([C(1)], collections.deque), collections.deque([5]), collections.deque([1])),
        (DictVariable({key("b"): C(1), key("a"): C(2)}), {"a": 0, "b": 0}, {"b": 1, "a": 2}),
        (DictVariable({}), {"a": 0}, {}),
    ],
    ids=str,
)
def test_new_contents_replace_the_old_ones_in_place(variable: VariableTracker, before: Any, after: Any) -> None:
    names = Namespace(["target"])
    rebuild = Rebuilder(names, SideEffects(), {}, [variable])
    lines = refill(rebuild, variable, "target")
    exec("\n".join([*rebuild.lines, *lines]), dict(names.values), {"target": before})
    assert before == after
    assert list(before) == list(after)
