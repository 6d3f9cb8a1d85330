"""Tests of minidynamo/autograd/graph/batched_grads.py: batched gradients equal gradients computed separately."""

import pytest
import torch

from minidynamo.autograd.graph.batched_grads import has_batches, one_by_one
from tests.autograd.programs import compile_program, inputs, intermediate_inputs
from tests.end_to_end.programs import rows_of


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
