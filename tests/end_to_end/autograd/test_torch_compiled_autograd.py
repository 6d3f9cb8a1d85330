"""torch's compiled autograd captures backwards that go through compiled functions."""

from __future__ import annotations

import functools

import pytest
import torch

import minidynamo


def _outer(name: str):
    if name == "minidynamo":
        return functools.partial(minidynamo.compile, backend="aot_eager")
    return functools.partial(torch.compile, backend=name)


def _two_results(x, y):
    h = torch.tanh(x @ y)
    return (h * h).sum(), h.sin()


def _program(f, x, y):
    total, h = f(x.exp(), y)
    return total + (h * 2).relu().sum()


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("aot_eager", "eager"),
        ("aot_eager", "minidynamo"),
        pytest.param("aot_eager", "inductor", marks=[pytest.mark.cpp, pytest.mark.slow]),
        pytest.param("native", "eager", marks=pytest.mark.cpp),
        pytest.param("native", "minidynamo", marks=[pytest.mark.cpp, pytest.mark.slow]),
        pytest.param("native", "inductor", marks=[pytest.mark.cpp, pytest.mark.slow]),
    ],
)
@pytest.mark.filterwarnings("ignore", "error::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("compiled_inside", [False, True])
def test_a_backward_through_compiled_functions_is_captured(inner, outer, compiled_inside):
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    _program(_two_results, x, y).backward()
    expected, x.grad, y.grad = (x.grad, y.grad), None, None
    f = minidynamo.compile(lambda x, y: _two_results(x, y), backend=inner)
    if not compiled_inside:
        _program(f, x, y)
    for _ in range(2):
        x.grad = y.grad = None
        with compiled_autograd._enable(_outer(outer)):
            _program(f, x, y).backward()
        torch.testing.assert_close((x.grad, y.grad), expected)
    compiled_autograd.reset()
