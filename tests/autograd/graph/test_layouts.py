"""Tests of minidynamo/autograd/graph/layouts.py: gradients get the layout that backward was compiled for."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.autograd.graph.layouts import GradientLayout, Layout, has_batches, one_by_one
from tests.autograd.programs import compile_program, inputs, intermediate_inputs
from tests.end_to_end.programs import rows_of


def test_saved_tensors_are_restored():
    x = torch.randn(3, 4).t()
    layout = Layout(x)
    assert layout.restored(x) is x and layout.empty().stride() == x.stride()
    restored = layout.restored(x.double().contiguous())
    assert torch.equal(restored, x) and restored.stride() == x.stride() and restored.dtype is x.dtype
    with pytest.raises(RuntimeError, match="returned a tensor of shape"):
        layout.restored(x[1:])


def test_gradients_get_the_strides_of_the_graph():
    fit = GradientLayout(torch.empty(4, 3).t())
    fitting = torch.randn(4, 3).t()
    assert fit(fitting, None) is fitting
    copied = fit(torch.ones(1).expand(3, 4), None)
    assert copied.stride() == (1, 3) and torch.equal(copied, torch.ones(3, 4))
    assert torch.equal(fit(None, None), torch.zeros(3, 4))


def test_gradients_with_repeated_elements_are_told_from_others():
    fit = GradientLayout(torch.empty(3, 4))
    one, row = torch.ones(()), torch.ones(4)
    assert fit.own_strides(one.expand(3, 4), False) == (0, 0)
    assert fit.own_strides(row.expand(3, 4), False) == (0, 1)
    assert fit(row.expand(3, 4), None, (0, 1)).stride() == (0, 1)
    negative = torch.zeros(1, 4, dtype=torch.complex64).conj().imag.expand(3, 4)
    others = [torch.ones(3, 4), torch.ones(3, 8)[:, ::2], negative]
    assert not any(fit.own_strides(other, False) for other in others)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [lambda x: x * 2, lambda x: x.to_sparse(), lambda x: (x.to_sparse() * 2, x.sin())],
    ids=["to dense", "to sparse", "two"],
)
def test_gradients_may_be_sparse_where_results_are_dense_and_the_other_way_round(program, backend):
    def gradient(fn, given):
        x = torch.eye(3).requires_grad_()
        made = fn(x)
        return torch.autograd.grad(made[0] if isinstance(made, tuple) else made, x, given)[0].to_dense()

    diagonal = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    compiled = minidynamo.compile(program, backend=backend)
    for given in (diagonal, diagonal.to_sparse()):
        assert torch.equal(gradient(compiled, given), gradient(program, given))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("expanded", [False, True])
def test_gradients_may_be_views_that_conjugate(backend, expanded):
    def program(x):
        return torch.complex(x.real.sin(), x.imag.cos())

    def gradient(function):
        x = torch.tensor([0.5 + 1j, 2 - 1j], requires_grad=True)
        given = torch.tensor([1 + 2j]).expand(2) if expanded else torch.tensor([1 + 2j, 3j])
        return torch.autograd.grad(function(x), x, given.conj())[0]

    torch.testing.assert_close(gradient(minidynamo.compile(program, backend=backend)), gradient(program))


def program(x, w):
    return ((x @ w).tanh() * x.sum(), (x * x).sum(0))


class Ways:
    def at_once(call, args, tangents):
        out = call(args)[0]
        return torch.autograd.grad(out, args, tangents, is_grads_batched=True)

    def at_once_to_differentiate(call, args, tangents):
        tangents = tangents.requires_grad_()
        made = torch.autograd.grad(call(args)[0], args, tangents, is_grads_batched=True, create_graph=True)
        return [*made, *torch.autograd.grad(sum(g.square().sum() for g in made), [*args, tangents])]

    def mapped(call, args, tangents):
        out = call(args)[0]
        return torch.vmap(lambda t: torch.autograd.grad(out, args, t, retain_graph=True), 1)(tangents.movedim(0, 1))

    def mapped_to_differentiate(call, args, tangents):
        tangents, out = tangents.requires_grad_(), call(args)[0]
        made = torch.vmap(lambda t: torch.autograd.grad(out, args, t, create_graph=True))(tangents)
        return [*made, *torch.autograd.grad(sum(g.square().sum() for g in made), [*args, tangents])]

    def mapped_twice(call, args, tangents):
        out = call(args)[0]
        rows = torch.stack([tangents, tangents * 2])
        return torch.vmap(torch.vmap(lambda t: torch.autograd.grad(out, args, t, retain_graph=True)))(rows)

    def second_derivatives_at_once(call, args, tangents):
        (first,) = torch.autograd.grad(call(args)[0].sum(), args[0], create_graph=True)
        return torch.autograd.grad(first, args, tangents[:, :, :4], is_grads_batched=True)


@pytest.fixture(scope="module")
def compiled():
    return compile_program(program, inputs((3, 4), (4, 4))()[0])


@pytest.mark.parametrize("way", rows_of(Ways))
def test_batches_of_gradients(way, compiled):
    results = []
    for call in (compiled, lambda args: program(*args)):
        torch.manual_seed(0)
        args, _ = inputs((3, 4), (4, 4))()
        results.append(way(lambda given, call=call: call(list(given)), args, torch.randn(5, 3, 4)))
    torch.testing.assert_close(*map(list, results), rtol=1e-4, atol=1e-4)


def test_batches_where_nothing_was_kept_for_higher_derivatives():
    compiled = compile_program(program, intermediate_inputs((3, 4), (4, 4))()[0])
    results = []
    for call in (compiled, lambda args: program(*args)):
        torch.manual_seed(0)
        args, leaves = intermediate_inputs((3, 4), (4, 4))()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            (out, _) = call(list(args))
        results.append(torch.autograd.grad(out, leaves, torch.randn(5, 3, 4), is_grads_batched=True))
    torch.testing.assert_close(*results)


def test_one_by_one():
    rows = []

    def record(tangents):
        rows.append([tuple(t.shape) for t in tangents if t is not None])
        return [tangents[0] * 2, None]

    def once(t):
        assert has_batches([None, t]) and not has_batches([None, torch.ones(3)])
        doubled, nothing = one_by_one(record, [t, torch.ones(3), None])
        assert nothing is None
        return doubled

    given = torch.randn(4, 2)
    assert torch.equal(torch.vmap(once)(given), given * 2)
    assert rows == [[(2,), (3,)]] * 4
