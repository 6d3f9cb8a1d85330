"""Graphs that would need more memory than eager run as captured; all remaining graphs are compiled."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from benchmarks.memory import peak_bytes
from minidynamo.core.events import MinidynamoNotice

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def columns(x):
    made = x @ x
    made[:, 1:].sub_(x[:, :-1]).tanh_()
    return made


def columns_of_rows(x):
    made = x @ x
    made[1:][:, 2:].sub_(x[1:, 2:]).sigmoid_()
    return made


def transposed(x):
    made = x @ x
    made.t()[5:].mul_(2).tanh_()
    return made


def rows_set_to_zero(x):
    made = x @ x
    made[1:].relu_()
    return made


def step(call, x):
    """Returns the result of a call, and the gradient of `x`, if any."""
    made = call(x)
    if not x.requires_grad:
        return [made]
    (gradient,) = torch.autograd.grad(made.square().mean(), x)
    return [made.detach(), gradient]


def assert_runs_as_captured(call, program, x):
    with pytest.warns(MinidynamoNotice, match="MD412 a graph runs operation by operation"):
        got = step(call, x)
    torch.testing.assert_close(got, step(program, x))
    assert [plan.stage for plan in call.memory_plan()] == ["captured"]
    assert peak_bytes(lambda: step(call, x)) <= peak_bytes(lambda: step(program, x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [columns, columns_of_rows, transposed])
def test_parts_with_gaps_are_written_where_they_lie(program, backend):
    assert_runs_as_captured(minidynamo.compile(program, backend=backend, fullgraph=True), program, torch.rand(64, 64))


@pytest.mark.cpp
def test_what_is_kept_for_backward_counts():
    """Generated code would save a mask of positive elements in addition to the result."""
    x = torch.rand(64, 64, requires_grad=True)
    assert_runs_as_captured(minidynamo.compile(rows_set_to_zero, fullgraph=True), rows_set_to_zero, x)


def test_sizes_that_vary_are_those_of_the_call():
    call = minidynamo.compile(columns, backend="aot_eager", dynamic=True, fullgraph=True)
    assert_runs_as_captured(call, columns, torch.rand(64, 64))


@pytest.mark.cpp
def test_backward_kernels_for_sizes_that_vary_are_planned_for_those_of_the_call():
    def gated(x):
        return x.sum(0), torch.nn.functional.glu(x)

    def both(call, x):
        made = call(x)
        return [*made, *torch.autograd.grad(sum(value.square().mean() for value in made), x)]

    compiled = minidynamo.compile(gated, backend="native", fullgraph=True, dynamic=True)
    x = torch.rand(64, 64, requires_grad=True)
    with pytest.warns(MinidynamoNotice, match="MD412 .* in backward"):
        got = both(compiled, x)
    torch.testing.assert_close(got, both(gated, x))
    assert peak_bytes(lambda: both(compiled, x)) <= peak_bytes(lambda: both(gated, x))


def test_the_texts_are_those_of_what_runs():
    call = minidynamo.compile(columns, backend="aot_eager", fullgraph=True)
    with pytest.warns(MinidynamoNotice, match="MD412"):
        call(torch.rand(64, 64))
    assert "ATen graph" not in str(call.code()) and "host program" in str(call.code())


def test_it_can_be_switched_off():
    call = minidynamo.compile(columns, backend="aot_eager", fullgraph=True, options={"eager_peak": False})
    x = torch.rand(64, 64)
    torch.testing.assert_close(call(x), columns(x))
    assert [plan.stage for plan in call.memory_plan()] == ["inference"]


def swapped(h):
    first, second = h.chunk(2)
    first.add_(second)
    second.sub_(first)


def copied(h, x):
    return h.copy_(x * 2).sin()


batch_norm = torch.nn.BatchNorm1d(64)


def statistics(x):
    return batch_norm(x @ x).relu_()


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (swapped, lambda: [torch.rand(64, 64)]),
        (copied, lambda: [torch.rand(64, 64), torch.rand(64, 64, requires_grad=True)]),
        (rows_set_to_zero, lambda: [torch.rand(64, 64, requires_grad=True)]),
        (statistics, lambda: [torch.rand(64, 64, requires_grad=True)]),
    ],
)
def test_others_are_compiled(program, given):
    call = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    call(*given())  # a notice would be an error here
    assert [plan.stage for plan in call.memory_plan()] != ["captured"]
