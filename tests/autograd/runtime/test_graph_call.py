"""Tests of minidynamo/autograd/runtime/graph_call.py: autograd around compiled graphs."""

import weakref

import pytest
import torch
from torch import fx

from minidynamo.graph.boxed import is_boxed, mark_boxed
from tests.autograd.programs import assert_same, compile_program, inputs, interpret
from tests.held_gradients import HAS_BOXED_GRADIENTS

alive = []


def counting(gm, examples):
    """Runs a graph boxed, and records after each node the number of live inputs."""
    nodes = list(gm.graph.nodes)
    last = {used: node for node in nodes for used in node.all_input_nodes}

    def call(args):
        *body, output = nodes
        env = dict(zip((n for n in nodes if n.op == "placeholder"), args))
        seen = [weakref.ref(a) for a in args]
        args.clear()
        for node in body:
            if node.op == "call_function":
                env[node] = node.target(*fx.map_arg(node.args, env.get), **fx.map_arg(node.kwargs, env.get))
                for used in node.all_input_nodes:
                    if last[used] is node:
                        del env[used]
                alive.append(sum(ref() is not None for ref in seen))
        return fx.map_arg(output.args[0], env.__getitem__)

    return mark_boxed(call)


@pytest.mark.skipif(not HAS_BOXED_GRADIENTS, reason="autograd hands gradients in one by one")
def test_a_gradient_that_comes_in_dies_at_its_last_use_in_backward():
    """Autograd's own operations free the tensor no later."""
    x = torch.randn(6, requires_grad=True)
    call = compile_program(lambda x: (x.sin().cos(),), [x], backward=counting)
    (y,) = call([x])
    alive.clear()
    (y * 2).sum().backward()
    assert alive[-1] == 1  # x, held by the test


def test_an_input_changed_before_backward_is_noticed():
    x, w = torch.randn(3, requires_grad=True), torch.randn(3)
    for victim in (x, w):
        (y,) = compile_program(lambda x, w: (x * w * x,), [x, w])([x, w])
        with torch.no_grad():
            victim.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_output_changed_before_backward_is_noticed():
    x = torch.randn(3, requires_grad=True)
    (y,) = compile_program(lambda x: (x.tan(),), [x])([x])
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def detach_program(x, p):
    return (x * p.detach(),)


def test_leaf_or_not_is_seen_at_each_call():
    """Compiles one graph: a leaf stays with autograd, a later inner tensor is detached."""
    x, base = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    call = compile_program(detach_program, [x, torch.ones(3, requires_grad=True)])
    middle = base.exp()
    call([x, middle])[0].sum().backward()
    middle.sum().backward()
    torch.testing.assert_close(base.grad, base.detach().exp())
    (y,) = call([x, base])
    assert sum(function is not None for function, _ in y.grad_fn.next_functions) == 2


def test_written_inputs_that_share_memory_run_operation_by_operation():
    def program(xs, y):
        xs[0].add_(1)
        return xs[1] * 2, y + 1

    call = compile_program(program, [[torch.ones(3), torch.ones(3)], torch.ones(3)], stolen=[0])
    for share in (False, True):
        a, y = torch.ones(3), torch.ones(3)
        xs = [a, a.view(3) if share else torch.ones(3)]
        first, second = call([xs, y])
        assert xs == [] and torch.equal(a, torch.full((3,), 2.0)) and torch.equal(second, torch.full((3,), 2.0))
        assert torch.equal(first, torch.full((3,), 4.0 if share else 2.0))
    y = torch.ones(6)
    first, second = call([[torch.ones(3), y[:3]], y[3:]])  # shared, but not with the written tensor
    assert torch.equal(first, torch.full((3,), 2.0)) and torch.equal(second, torch.full((3,), 2.0))


def test_a_program_without_peculiarities_pays_for_nothing():
    seen = []

    def record(gm, examples):
        seen.append(interpret(gm, examples))
        return seen[0]

    call = compile_program(lambda x: (x + 1, x * 2), [torch.ones(3)], inference=record)
    assert call is seen[0] and is_boxed(call)
    assert is_boxed(compile_program(lambda x: (x + 1,), [torch.ones(3, requires_grad=True)]))


def test_nothing_is_kept_alive_by_the_runtime():
    x = torch.randn(5, 5, requires_grad=True)
    call = compile_program(lambda x, y: ((x @ y).sum(), y.t()), [x, torch.randn(5, 5)])
    y = torch.randn(5, 5)
    ref = weakref.ref(y)
    out = call([x, y])
    del y
    out[0].backward()
    assert ref() is not None
    del out
    assert ref() is None


def test_constants_of_the_program_are_handed_in():
    assert_same(lambda x: (x * torch.tensor([1.0, 2.0, 3.0]),), inputs((2, 3)))
    assert_same(lambda x: (x * torch.tensor([1.0, 2.0, 3.0]),), inputs((2, 3), grad=False))
    assert_same(lambda x: (torch.tensor([1.0, 2.0]), x * 1), inputs((2, 3)))


def test_saved_tensor_hooks_may_return_another_dtype_but_no_other_shape():
    x = torch.randn(3, 3, requires_grad=True)
    call = compile_program(lambda x: (x.sin().tan(),), [x])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double().t(), lambda t: t.t()):
        (y,) = call([x])
    (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(x.sin().tan().sum(), x)[0])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t[0], lambda t: t):
        (y,) = call([x])
    with pytest.raises(RuntimeError, match=r"returned a tensor of shape \(3,\) for a tensor of shape \(3, 3\)"):
        y.sum().backward()


def test_results_require_grad_although_no_gradient_comes():
    """As in eager, where the gradient function returns nothing."""
    x = torch.randn(3, requires_grad=True)
    compiled = compile_program(lambda x: (torch.linalg.vector_norm(x, 0),), [x * 1])
    (out,) = compiled([x * 1])
    assert out.requires_grad
    assert torch.autograd.grad(out, x, allow_unused=True) == (None,)
