"""Tests of minidynamo/autograd/splitting.py: saved tensors of higher derivatives count in the choice of a split."""

import weakref

import torch

import minidynamo


def program(w):
    scaled = w * 3
    return scaled.logsumexp(-1) * 2, torch.nn.functional.softmin(scaled, -1)


def second_derivative(made, w):
    (first,) = torch.autograd.grad(sum(value.square().sum() for value in made), w, create_graph=True)
    return torch.autograd.grad(first.square().sum(), w)[0]


def test_no_argument_is_held_for_what_only_backward_computes():
    leaf = torch.rand(8, 8, dtype=torch.float64, requires_grad=True)
    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    h = leaf * 1
    watched = weakref.ref(h)
    made = compiled(h)
    del h
    assert watched() is None
    kept = {value.op for value in compiled.saved()}
    assert "aten.mul.Tensor" in kept and "aten.exp.default" not in kept
    torch.testing.assert_close(second_derivative(made, leaf), second_derivative(program(leaf * 1), leaf))


def test_leaves_live_anyway():
    leaf = torch.rand(8, 8, dtype=torch.float64, requires_grad=True)
    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    made = compiled(leaf)
    kept = {value.op for value in compiled.saved()}
    assert "aten.exp.default" in kept and "aten.mul.Tensor" not in kept
    torch.testing.assert_close(second_derivative(made, leaf), second_derivative(program(leaf), leaf))


def several(w):
    differences = w - w.mean(0)
    return w.logsumexp(-1), torch.addcmul(differences, differences, differences)


def test_no_more_is_kept_for_one_result_than_in_eager():
    """Does not recompute the differences from tensors saved for the first result, since the caller may drop the first
    result."""
    compiled, w = minidynamo.compile(several, backend="aot_eager", fullgraph=True), torch.rand(64, 64).requires_grad_()
    first, second = compiled(w * 1)
    reasons = {value.op: value.reason for value in compiled.saved()}
    assert "one of several results needs nothing else" in reasons["aten.sub.Tensor"]
    del first
    (got,) = torch.autograd.grad(second.sum(), w)
    torch.testing.assert_close(got, torch.autograd.grad(several(w)[1].sum(), w)[0])
