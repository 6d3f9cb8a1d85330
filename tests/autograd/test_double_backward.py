"""Tests of minidynamo/autograd/double_backward.py: gradients of gradients are eager's."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

from minidynamo.errors import Unsupported
from tests.autograd.programs import compile_program, flat, inputs, intermediate_inputs, mixed_inputs, module_program


def second(call, make, order=2):
    """Gradients of a function of the gradients, and those of the function itself, to `order`."""
    torch.manual_seed(3)
    args, leaves = make()
    torch.manual_seed(4)
    outputs = [o for o in call(list(args)) if o.requires_grad]
    total = sum((o * (i + 1)).sin().sum() for i, o in enumerate(outputs))
    found = []
    for _ in range(order):
        made = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        found.append(made)
        total = sum(g.square().sum() for g in made if g is not None and g.requires_grad)
        if not isinstance(total, torch.Tensor):
            break
    return found, torch.rand(())


def assert_same_gradients(program, make, order=2, tolerance=1e-5, dynamic=False):
    compiled = compile_program(program, make()[0], dynamic=dynamic)
    got, drawn = second(compiled, make, order)
    expected, drawn_by_eager = second(lambda args: program(*args), make, order)
    assert len(got) == len(expected) and drawn == drawn_by_eager
    for ours, theirs in zip(flat(map(list, got)), flat(map(list, expected))):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def detached(x, p):
    return (x * p.detach() + (x * p).detach() * x,)


def partly_without_grad(x, p):
    with torch.no_grad():
        factor = (x * p).sin()
    return (factor * x.exp() * p,)


def written(x, p):
    y = x * p
    y.mul_(p)
    return (y.sin(), y[0])


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


PROGRAMS = {
    "product": (lambda x, p: (x * p,), inputs((3, 4), (3, 4))),
    "linear": (lambda x, p: (x + p, x - p * 2), inputs((3, 4), (3, 4))),
    "saved results": (lambda x, p: ((x * p).exp().tanh(), (x + p).sigmoid()), inputs((3, 4), (3, 4))),
    "mlp": (lambda x, w, b, v: (F.softplus(x @ w + b) @ v,), inputs((3, 4), (4, 5), (5,), (5, 2))),
    "relu": (lambda x, w: (((x @ w).relu() ** 2).sum(),), inputs((3, 4), (4, 5))),
    "conv": (lambda x, w: (F.conv2d(x, w, padding=1).sigmoid(),), inputs((2, 3, 5, 5), (4, 3, 3, 3))),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), inputs((3, 4))),
    "layer_norm": (lambda x, w: (F.layer_norm(x, (4,), w),), inputs((3, 4), (4,))),
    "detach": (detached, inputs((3, 4), (3, 4))),
    "no_grad": (partly_without_grad, inputs((3, 4), (3, 4))),
    "writes": (written, inputs((3, 4), (3, 4))),
    "views": (lambda x: (y := x * x, y.t(), y.view(-1)[2:]), inputs((3, 4))),
    "dropout": (lambda x, p: (F.dropout(x * p, 0.5).exp(),), inputs((8, 8), (8, 8))),
    "a custom function": (lambda x, p: (Cube.apply(x * p).sin(),), inputs((3, 4), (3, 4))),
    "data": (lambda x, y: ((x.exp() - y) ** 2, y), mixed_inputs(((3, 4), "leaf"), ((3, 4), "data"))),
    "inner inputs": (lambda x, p: ((x * p).relu() * x,), intermediate_inputs((3, 4), (3, 4))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_gradients(name):
    assert_same_gradients(*PROGRAMS[name])


@pytest.mark.parametrize("name", ["mlp", "dropout", "detach", "inner inputs"])
def test_third_derivatives(name):
    assert_same_gradients(*PROGRAMS[name], order=3)


@pytest.mark.parametrize("name", ["mlp", "views", "softmax"])
def test_symbolic_sizes(name):
    assert_same_gradients(*PROGRAMS[name], dynamic=True)


def test_running_statistics_are_not_updated_twice():
    program, values = module_program(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)))

    def make():
        made, leaves = values()
        return [torch.randn(2, 3, 5, 5), *made], leaves

    assert_same_gradients(program, make, tolerance=1e-3)
    compiled = compile_program(program, make()[0])
    for call in (compiled, lambda args: program(*args)):
        torch.manual_seed(0)
        args, leaves = make()
        (out,) = call(list(args))
        torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        assert args[-1] == 1


def test_one_input_computed_from_another():
    compiled = compile_program(lambda x, y: (x * y * y,), intermediate_inputs((3,), (3,))()[0])
    results = []
    for call in (lambda x, y: compiled([x, y])[0], lambda x, y: x * y * y):
        leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        x = leaf * 2
        (first,) = torch.autograd.grad(call(x, x.sin()).sum(), leaf, create_graph=True)
        results.append([first, *torch.autograd.grad(first.sum(), leaf)])
    torch.testing.assert_close(*results)


def test_an_input_written_to_since_is_refused_only_when_it_matters():
    compiled = compile_program(lambda x, b: ((x.cumsum(0) + b).relu(),), inputs((3,), (3,))()[0])
    x, b = inputs((3,), (3,))()[0]
    (out,) = compiled([x, b])
    with torch.no_grad():
        b.add_(1)
    (first,) = torch.autograd.grad(out.sum(), b, create_graph=True)
    assert torch.equal(first, (out > 0).float())
    with pytest.raises(Unsupported, match="MD403") as caught:
        first.sum().backward()
    assert "written to since" in str(caught.value)


def test_what_is_kept_makes_no_cycle():
    compiled = compile_program(lambda h: ((h.cumsum(0) + 1).relu(),), intermediate_inputs((3,))()[0])
    gc.collect()
    gc.disable()
    try:
        h = torch.ones(3, requires_grad=True) * 2
        (out,) = compiled([h])
        h.add_(out)
        watched = weakref.ref(h)
        del h, out
        assert watched() is None
    finally:
        gc.enable()


def test_what_is_refused_is_never_left_out_silently():
    def program(x, b):
        return ((x.cumsum(0) * b).exp(),)

    compiled = compile_program(program, inputs((3,), (3,))()[0])
    x, b = inputs((3,), (3,))()[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        (out,) = compiled([x, b])
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(program(x, b)[0].sum(), x)[0])
    with pytest.raises(Unsupported, match="MD403") as caught:
        torch.autograd.grad(first.sum() + out.sum(), b, allow_unused=True)
    assert "Hooks for saved tensors" in str(caught.value)
