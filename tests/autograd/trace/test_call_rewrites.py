"""Tests of minidynamo/autograd/trace/call_rewrites.py: slices of a whole dimension with a symbolic size, and
decompositions without vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import minidynamo
from minidynamo.autograd.aot import aot_graphs
from minidynamo.fake.mode import FakeTensorMode
from tests.autograd.programs import fake, targets

KEYS: dict[str, Any] = {
    "a column": (slice(None), 1),
    "rows of columns": (slice(0, None, 1), slice(1, 3)),
    "a new dimension": (None, slice(None), ..., 0),
    "by places": (slice(None), torch.tensor([0, 2])),
    "by a list": (slice(None), [0, 2]),
    "all": (slice(None), slice(None)),
    "alone": slice(None),
}


def read(x: torch.Tensor, key: Any) -> torch.Tensor:
    return x[key] * 2


def written(x: torch.Tensor, key: Any) -> torch.Tensor:
    made = x * 3
    made[key] = x[key]
    return made


@pytest.mark.parametrize(
    "key, program", [*((key, read) for key in KEYS), ("a column", written), ("by a list", written)]
)
def test_there_are_as_many_slices_as_where_sizes_are_numbers(key: str, program: Any) -> None:
    def of_key(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = program(x, KEYS[key])
        return result

    static, dynamic = (
        minidynamo.compile(of_key, backend="aot_eager", fullgraph=True, dynamic=dynamic) for dynamic in (False, True)
    )
    found = []
    for call in (of_key, static, dynamic):
        x = torch.arange(20.0).reshape(4, 5).requires_grad_()
        result = call(x)
        (gradient,) = torch.autograd.grad(result, x, result.detach().cos())
        found.append([result, gradient, torch.tensor([*result.stride(), *gradient.stride()])])
    for made in found[1:]:
        torch.testing.assert_close(made, found[0], rtol=0, atol=0)
    assert dynamic.code().count("aten.slice") == static.code().count("aten.slice")


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
