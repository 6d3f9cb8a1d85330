"""The table of lowerings."""

import pytest
import torch

from minidynamo.codegen.lowering import registry

aten = torch.ops.aten


def test_find_is_by_name_without_overload():
    assert registry.find(aten.add.Tensor) is registry.find(aten.add.Scalar) is not None
    assert registry.find(aten.mm.default) is None
    assert registry.find(torch.add) is None


def test_views_are_marked():
    assert registry.is_view(aten.permute.default)
    assert not registry.is_view(aten.add.Tensor)
    assert not registry.is_view(torch.permute)


def test_lowered_ops_are_overloads():
    ops = registry.lowered_ops()
    assert {aten.add.Tensor, aten._softmax.default, aten.native_layer_norm.default} <= ops
    assert aten.convolution.default not in ops


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="two lowerings"):
        registry.add("add", registry.LOWERINGS["sub"])


def test_lowered_ops_knows_every_name():
    names = {registry.base_name(op) for op in registry.lowered_ops()}
    assert names == set(registry.LOWERINGS)
    assert torch.ops.prims.iota.default in registry.lowered_ops()
