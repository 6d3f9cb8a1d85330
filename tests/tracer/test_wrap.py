import datetime

import numpy as np
import pytest
import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.tracer.wrap import wrap
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.objects import ModuleVariable
from tests.tracer.wrapping import assert_wrapped, empty_graph


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (5, GuardKind.EQUALS),
        (slice(1, 2), GuardKind.EQUALS),
        (datetime.date(2024, 1, 1), GuardKind.EQUALS),
        (np.float32(1), GuardKind.EQUALS),
        (None, GuardKind.IDENTITY),
        (torch.float32, GuardKind.IDENTITY),
    ],
    ids=repr,
)
def test_constants_are_guarded_by_value_or_identity(value, kind):
    assert_wrapped(value, ConstantVariable, {kind})


def test_one_object_has_one_tracker():
    graph = empty_graph()
    x = torch.ones(2)
    first = wrap(graph, x, Local("x"))
    assert wrap(graph, x, Local("y")) is first
    assert graph.guards[-1].kind is GuardKind.SAME_OBJECT and graph.guards[-1].expected == Local("x")
    assert wrap(graph, [x, [x]], Local("xs")).items[0] is first


@pytest.mark.parametrize("bases", [(torch.nn.Module, dict), (dict, torch.nn.Module)])
def test_a_module_that_is_also_a_dict_is_a_module(bases):
    assert_wrapped(type("Both", bases, {})(), ModuleVariable, {GuardKind.TYPE})
