"""Tests of minidynamo/autograd/build_signature.py: the fields of the signature for small programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minidynamo.autograd.aot import aot_graphs
from minidynamo.autograd.graph.signature import GraphSignature
from tests.autograd.programs import graph_of


def signature_of(program: Callable[..., Any], *args: torch.Tensor) -> GraphSignature:
    return aot_graphs(*graph_of(program, [*args])).signature


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def test_inference_has_no_gradients() -> None:
    signature = signature_of(lambda x, y: (x + y, x.shape[0]), torch.ones(2), torch.ones(2))
    assert (signature.inputs, signature.graph.edges, signature.saved) == (("arg0", "arg1"), (), ())


def test_gradients_are_numbered_by_input() -> None:
    signature = signature_of(lambda x, y, z: (x * y + z.detach(),), torch.ones(2), leaf(2), leaf(2))
    edges = sorted(signature.graph.edges, key=lambda edge: edge.input)
    assert [(edge.input, edge.has_gradient) for edge in edges] == [(1, True), (2, False)]
    assert [edge.sources for edge in edges] == [(0,), ()]
    assert [value.name for value in signature.saved] == ["arg0"]


def test_each_result_has_its_sources_and_saved_tensors() -> None:
    signature = signature_of(lambda x, y: (x.sin(), y.exp()), leaf(2), leaf(2))
    assert signature.graph.positions == (0, 1)
    assert {edge.input: edge.sources for edge in signature.graph.edges} == {0: (0,), 1: (1,)}
    assert sorted(map(len, signature.graph.readers)) == [1, 1]


def test_a_tangent_that_is_returned_as_it_is() -> None:
    signature = signature_of(lambda x, y: (x + y,), leaf(2), leaf(2))
    assert [target.is_aliased for target in signature.graph.targets] == [True]
