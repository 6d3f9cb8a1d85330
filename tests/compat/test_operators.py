"""Tests of minidynamo/compat/operators.py."""

from __future__ import annotations

import operator

import pytest
import torch

from minidynamo import compat
from minidynamo.fake.mode import FakeTensorMode


@torch.library.custom_op("minidynamo_compat::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("minidynamo_compat::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


thrice.register_autocast("cpu", torch.bfloat16)


def test_what_is_known_of_a_custom_operator():
    op = compat.overload_of(twice)
    assert op is torch.ops.minidynamo_compat.twice.default
    assert compat.schema_of(op).name == "minidynamo_compat::twice"
    known = compat.definition_of(op)
    assert known.backward is None and not known.casts
    assert compat.definition_of(compat.overload_of(thrice)).casts
    assert compat.definition_of(torch.ops.aten.sin.default) is None


def test_the_form_without_data_of_a_custom_operator():
    run = compat.fake_implementation_of(compat.overload_of(twice))
    mode = FakeTensorMode()
    assert run is not None and run(mode, mode.from_tensor(torch.ones(3))).shape == (3,)
    assert compat.fake_implementation_of(torch.ops.aten.sin.default) is None


def test_what_calling_an_operator_comes_to():
    x = torch.ones(2)
    assert torch.equal(compat.operator_function(torch.ops.aten.sin.default)(x), x.sin())
    assert compat.operator_function(torch.sin) is torch.sin


@pytest.mark.parametrize(("reads_workspace", "target"), [(True, "recurrent_layer_for_training"), (False, "default")])
def test_a_recurrent_layer_whose_workspace_is_read_is_called_for_training(reads_workspace, target):
    graph = torch.fx.Graph()
    layer = graph.call_function(torch.ops.aten.mkldnn_rnn_layer.default, (graph.placeholder("x"),))
    if reads_workspace:
        graph.call_function(operator.getitem, (layer, 3))
    assert compat.runtime_target(layer).__name__.endswith(target)
