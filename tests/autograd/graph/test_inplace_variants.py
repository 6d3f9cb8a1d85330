"""Tests of minidynamo/autograd/graph/inplace_variants.py: for each operator, the variant that writes its result in
place."""

from __future__ import annotations

import pytest
import torch

from minidynamo.autograd.graph.inplace_variants import in_place, inplace_variant_of, out_variant
from tests.codegen.graphs import trace

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("functional", "writes", "written", "own"),
    [
        (aten.add.Tensor, aten.add_.Tensor, (0,), 0),
        (aten.normal_functional.default, aten.normal_.default, (0,), 0),
        (aten.bernoulli.p, aten.bernoulli_.float, (0,), 0),
        (aten._foreach_mul.Scalar, aten._foreach_mul_.Scalar, (0,), 0),
        (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.default, (3, 4), 3),
    ],
)
def test_the_operator_that_writes(functional, writes, written, own):
    twin = inplace_variant_of(functional)
    assert (twin.op, twin.written, twin.own) == (writes, written, own)


def test_an_operator_that_nothing_does_in_place():
    assert inplace_variant_of(aten.mm.default) is None and out_variant(aten.mm.default) is aten.mm.out
    assert inplace_variant_of(torch.ops.prims.sin.default) is None


def test_what_takes_the_same_arguments_may_be_called_instead():
    graph = trace(lambda x, y: (x.cumsum(0), x @ y, x.sort()), *torch.ones(2, 4, 4)).graph
    found = {node.target: in_place(node) for node in graph.nodes}
    assert found[aten.cumsum.default] is aten.cumsum_.default
    assert found[aten.mm.default] is None and found[aten.sort.default] is None
