"""Tests of minidynamo/autograd/partition/saving.py: instructions of users about saved tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.errors import ArgumentError
from minidynamo.memory.plan import SavedTensors, SavedValue

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def program(x, w):
    h = torch.tanh(x @ w)
    h = F.layer_norm(h, (8,))
    h = F.softmax(h @ w, -1)
    return (h * x).sum()


def run(fn, backend="aot_eager", **options):
    """Returns the saved tensors, after a step whose gradients equal eager's."""
    torch.manual_seed(0)
    x, w = torch.rand(8, 8), torch.rand(8, 8)
    expected, got = [(x.clone().requires_grad_(), w.clone().requires_grad_()) for _ in range(2)]
    torch.manual_seed(0)
    fn(*expected).backward()
    f = minidynamo.compile(fn, backend=backend, **options)
    torch.manual_seed(0)
    f(*got).backward()
    torch.testing.assert_close([t.grad for t in got], [t.grad for t in expected], rtol=1e-4, atol=1e-6)
    return f.saved()


def own(saved):
    """Returns the bytes of saved tensors other than inputs."""
    return sum(value.bytes for value in saved if value.op != "input")


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_lists_what_is_kept_and_why(backend):
    saved = run(program, backend)
    assert isinstance(saved, SavedTensors)
    tanh = next(value for value in saved if value.op == "aten.tanh.default")
    assert (tanh.shape, tanh.dtype, tanh.bytes) == ((8, 8), torch.float32, 256)
    assert tanh.user_location is not None and "torch.tanh(x @ w)" in tanh.user_location.comment()
    assert all(isinstance(value, SavedValue) and value.reason for value in saved)
    assert "aten.tanh.default" in str(saved) and "test_saving.py" in str(saved)


def test_nothing_is_kept_without_gradients():
    f = minidynamo.compile(program, backend="aot_eager")
    f(torch.rand(8, 8), torch.rand(8, 8))
    assert f.saved() == []


def test_behind_graph_breaks_and_in_modules():
    def broken(x, w):
        y = torch.tanh(x @ w)
        minidynamo.graph_break()
        return (torch.tan(y) * w).sum()

    ops = [value.op for value in run(broken)]
    assert "aten.tanh.default" in ops and "aten.tan.default" in ops
    model = minidynamo.compile(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()), backend="aot_eager")
    model(torch.rand(2, 3)).sum().backward()
    assert any(value.op == "aten.tanh.default" for value in minidynamo.saved(model))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_smaller_budget_never_keeps_more(backend):
    budgets = [1.0, 0.75, 0.5, 0.25, 0.0]
    sizes = [own(run(program, backend, options={"activation_budget": budget})) for budget in budgets]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1] == 0


def test_a_policy_decides_per_tensor():
    asked = []

    def keep_products(tensor):
        asked.append(tensor)
        return "save" if tensor.op == "aten.mm.default" else None

    saved = run(program, save_policy=keep_products)
    assert any(value.op == "aten.mm.default" and value.reason == "save_policy= asks for it" for value in saved)
    assert all(isinstance(tensor, SavedValue) and tensor.bytes for tensor in asked)
    assert own(run(program, save_policy=lambda tensor: "recompute")) == 0
    again = run(program, save_policy=lambda tensor: "recompute" if "softmax" in tensor.op else None)
    assert "aten._softmax.default" not in [value.op for value in again]


def test_what_a_policy_may_not_say():
    def noisy(x, w):
        return (F.dropout(x, 0.5).tan() * w).sum()

    with pytest.raises(ArgumentError, match=r"MD409(?s:.*)recomputed, which is impossible"):
        run(noisy, save_policy=lambda tensor: "recompute")
    with pytest.raises(ArgumentError, match=r"MD409(?s:.*)'keep'"):
        run(program, save_policy=lambda tensor: "keep")
    with pytest.raises(ArgumentError, match=r"MD103(?s:.*)save_policy"):
        minidynamo.compile(program, save_policy="save")


def test_a_budget_is_a_share():
    with pytest.raises(ArgumentError, match=r"MD101(?s:.*)from 0 to 1"):
        minidynamo.compile(program, options={"activation_budget": 1.5})


def test_a_policy_that_raises_is_named():
    compiled = minidynamo.compile(lambda x: x.sin().sum(), backend="aot_eager", save_policy=lambda: "save")
    with pytest.raises(ArgumentError, match="MD409 save_policy= raised TypeError"):
        compiled(torch.ones(2, requires_grad=True))
