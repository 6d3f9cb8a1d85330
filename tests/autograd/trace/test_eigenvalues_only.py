"""Tests of minidynamo/autograd/trace/eigenvalues_only.py: decompositions computed without vectors."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from minidynamo.autograd.aot import aot_graphs
from minidynamo.fake.mode import FakeTensorMode
from tests.autograd.programs import fake, targets

SVD, EIGH = torch.ops.aten._linalg_svd.default, torch.ops.aten._linalg_eigh.default


def forward(program, *, grad):
    """Returns the forward graph of a program, call by call."""
    gm = fx.symbolic_trace(lambda x: (program(x),))
    with torch.set_grad_enabled(grad):
        return aot_graphs(gm, [fake(FakeTensorMode(), torch.rand(4, 4, requires_grad=True))]).forward


def has_vectors(gm, op):
    (node,) = gm.graph.find_nodes(op="call_function", target=op)
    return node.args[-1] is not False


@pytest.mark.parametrize(
    "program, op",
    [
        (torch.linalg.svdvals, SVD),
        (lambda x: torch.linalg.norm(x, "nuc"), SVD),
        (lambda x: torch.linalg.cond(x) * x, SVD),
        (torch.linalg.eigvalsh, EIGH),
    ],
)
def test_values_alone_are_computed_alone(program, op):
    assert not has_vectors(forward(program, grad=False), op)
    assert has_vectors(forward(program, grad=True), op)


def test_what_needs_no_gradient_has_no_vectors():
    assert not has_vectors(forward(lambda x: x * torch.linalg.svdvals(x.detach()).sum(), grad=True), SVD)


def test_eigenvalues_have_an_operator_of_their_own():
    assert targets(forward(torch.linalg.eigvals, grad=False)) == ["aten._linalg_eigvals.default"]


@pytest.mark.parametrize("program", [lambda x: torch.linalg.svd(x)[1], lambda x: x.svd().V])
def test_vectors_that_the_program_asks_for_are_computed(program):
    """Computes vectors even if the program drops the vectors: eager rounds the values differently when it computes
    vectors."""
    gm = forward(program, grad=False)
    assert "aten._linalg_svd.default" in targets(gm) and has_vectors(gm, SVD)
