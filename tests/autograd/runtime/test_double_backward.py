"""Tests of minidynamo/autograd/runtime/double_backward.py: gradients of gradients are eager's."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.errors import Unsupported
from tests.autograd.programs import (
    compile_program,
    flat,
    graphs,
    inputs,
    intermediate_inputs,
    mixed_inputs,
    module_program,
)


def second(call, make, order=2):
    """Returns gradients of a function of the gradients, and of the function itself, to `order`."""
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


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_parts_that_are_kept_where_sizes_vary(backend):
    """Takes strides from the tensors: their sizes do not determine their strides."""

    def program(a, b):
        return a[:, 1:].prod(-1), b.prod(-1), a[:0] ** 2

    compiled = minidynamo.compile(program, backend=backend, dynamic=True)
    for rows, columns in ((4, 3), (5, 6)):
        w, found = torch.randn(columns, rows, requires_grad=True), []
        for fn in (program, compiled):
            a = (w * 1).t()
            total = sum(value.square().sum() for value in fn(a, a[1:2]))
            (first,) = torch.autograd.grad(total, w, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), w)))
        torch.testing.assert_close(found[1], found[0])


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


@pytest.mark.parametrize("leaf_first", [True, False])
def test_an_input_that_gets_its_history_by_a_write(leaf_first):
    """The input had no history before, so no gradient reaches its history a second time."""

    def program(x, y):
        y.add_(x)
        return y.sin(), y * 1

    compiled = compile_program(program, [*intermediate_inputs((3,), (3,))()[0][:1], torch.ones(3)])
    results = []
    for call in (lambda x, y: compiled([x, y]), program):
        leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        x, y = (leaf if leaf_first else leaf * 2), torch.ones(3)
        (first,) = torch.autograd.grad((call(x, y)[0] + y.cos()).sum(), leaf, create_graph=True)
        results.append([first, *torch.autograd.grad(first.square().sum(), leaf)])
    torch.testing.assert_close(*results)


class TimesItsSum(torch.autograd.Function):
    """Backward reads a saved sum, which is useless for the derivative of the sum."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.detach().sin().sum()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.sin().sum() * 2


def of_a_sum(x):
    return (TimesItsSum.apply(x * 3),)


def test_what_gradients_depend_on_is_held_if_it_must_be():
    make = inputs((3, 4))
    made = graphs(of_a_sum, make()[0])
    assert [*made.higher.held] == [0] and [value.shape for value in made.signature.saved] == [()]
    assert_same_gradients(of_a_sum, make, order=3)


def test_an_input_written_to_since_is_refused_only_when_it_matters():
    compiled = compile_program(of_a_sum, inputs((3,))()[0])
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (out,) = compiled([leaf])
    with torch.no_grad():
        leaf.add_(1)
    (first,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
    torch.testing.assert_close(first, torch.full((3,), (torch.tensor([3.0, 6.0, 9.0]).sin().sum() * 6).item()))
    with pytest.raises(Unsupported, match="MD403") as caught:
        first.sum().backward()
    assert "written to since" in str(caught.value)


def test_an_input_that_no_derivative_depends_on_may_be_written_to():
    compiled = compile_program(lambda x, b: ((x.cumsum(0) + b).sigmoid(),), inputs((3,), (3,))()[0])
    results = []
    for call in (compiled, lambda args: (args[0].cumsum(0).add(args[1]).sigmoid(),)):
        x, b = (torch.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
        (out,) = call([x, b])
        with torch.no_grad():
            b.add_(1)
        (first,) = torch.autograd.grad(out.sum(), b, create_graph=True)
        results.append([first, *torch.autograd.grad(first.sum(), x)])
    torch.testing.assert_close(*results)


def test_gradients_that_do_not_depend_on_anything_require_no_grad():
    compiled = compile_program(lambda x, b: (x + b * 2, x * b), inputs((3,), (3,))()[0])
    x, b = inputs((3,), (3,))()[0]
    linear, product = compiled([x, b])
    found = torch.autograd.grad(linear.sum(), (x, b), create_graph=True)
    assert [g.requires_grad for g in found] == [False, False]
    found = torch.autograd.grad(product.sum(), (x, b), create_graph=True)
    assert [g.requires_grad for g in found] == [True, True]
    assert torch.autograd.grad(found[0].sum(), (x, b), allow_unused=True) == (None, pytest.approx(torch.ones(3)))


@pytest.mark.parametrize("name", ["mlp", "inner inputs", "softmax"])
def test_gradients_by_the_gradients_that_were_handed_in(name):
    program, make = PROGRAMS[name]
    compiled = compile_program(program, make()[0])
    results = []
    for call in (compiled, lambda given: program(*given)):
        torch.manual_seed(0)
        args, leaves = make()
        out = call(list(args))[0]
        tangent = torch.ones_like(out, requires_grad=True)
        first = torch.autograd.grad(out, leaves, tangent, create_graph=True)
        results.append(torch.autograd.grad(sum(g.sin().sum() for g in first), [*leaves, tangent]))
    torch.testing.assert_close(*results)


def writes_to_input(x, w):
    x.mul_(2)
    return ((x * w).tanh(),)


@pytest.mark.parametrize("differs", [(True, True, True), (False, True, True), (True, False, True), (True, True, False)])
def test_orders_are_told_apart_where_gradients_are_missing_or_constant(differs):
    """Covers a written input without an incoming gradient; some of the remaining inputs do not require grad."""
    make = intermediate_inputs((3, 4), (3, 4))
    compiled = compile_program(writes_to_input, make()[0])
    results = []
    for call in (compiled, lambda given: writes_to_input(*given)):
        torch.manual_seed(0)
        args, leaves = make()
        made, sources, found = [call(list(args))[-1]], [*leaves], []
        for order_differs in differs:
            tangents = [torch.randn(3, 4, requires_grad=order_differs) for _ in made]
            made = torch.autograd.grad(made, sources, tangents, create_graph=True)
            found += made
            sources += tangents if order_differs else []
        results.append(found)
    torch.testing.assert_close(*results)


def random_twice(x):
    return (TimesItsSum.apply(F.dropout(x, 0.5) + torch.rand_like(x)),)


def random_factor(x):
    return (TimesItsSum.apply(x * torch.bernoulli(x.detach().sigmoid()) + torch.rand_like(x)),)


@pytest.mark.parametrize("program", [random_twice, random_factor])
def test_random_numbers_that_were_not_kept_are_drawn_again_as_they_were(program):
    """Draws after the saved random numbers."""
    make = inputs((8, 8))
    assert graphs(program, make()[0]).higher.random == ("cpu",)
    assert_same_gradients(program, make)


class SavesAnother(torch.autograd.Function):
    """Backward reads a tensor that does not enter the result of forward."""

    @staticmethod
    def forward(ctx, x, other):
        ctx.save_for_backward(other)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (other,) = ctx.saved_tensors
        return gradient * other, None


def test_what_a_custom_function_saves_from_elsewhere_has_derivatives():
    def program(x, y):
        return (SavesAnother.apply(x * 2, y.sin()),)

    make = intermediate_inputs((3,), (3,))
    assert {*graphs(program, make()[0]).higher.linked} == {0, 1}
    assert_same_gradients(program, make)


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (lambda h: (h.sigmoid(),), intermediate_inputs((3, 4))),
        (lambda h, w: ((h @ w).relu().sum(0),), intermediate_inputs((3, 4), (4, 2))),
        (lambda h: ((h * 2 + 1).tanh(),), intermediate_inputs((3, 4))),
        (lambda h: (h.exp().sum(-1), h.softmax(0)), intermediate_inputs((3, 4))),
        (lambda h: (h.clamp(-0.5, 0.5),), intermediate_inputs((3, 4))),
        (lambda h: (F.gelu(h + 1),), intermediate_inputs((3, 4))),
        (lambda h: (F.max_pool2d(h, 2),), intermediate_inputs((1, 2, 4, 4))),
        (lambda h: (F.dropout(h, 0.5) + 1,), intermediate_inputs((3, 4))),
        (lambda h: ((h.cumsum(0) + 1).relu(),), intermediate_inputs((3, 4))),
    ],
)
def test_nothing_is_held_that_is_not_saved(program, make):
    """Compiled code, like eager, saves nothing for a derivative that may never be requested."""
    assert graphs(program, make()[0]).higher.held == {}
    assert_same_gradients(program, make)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.svdvals,
        torch.linalg.eigvalsh,
        lambda h: torch.linalg.eigvals(h).abs(),
        lambda h: torch.linalg.matrix_norm(h, "nuc"),
        lambda h: torch.linalg.matrix_norm(h, 2),
        torch.linalg.inv,
    ],
)
def test_a_matrix_of_which_eager_keeps_the_decomposition_dies(function):
    def program(h):
        return (function(h + torch.tensor([[9.0, 1.0], [0.0, 5.0]], dtype=torch.float64)).sin(),)

    def make():
        leaf = torch.tensor([[1.0, 0.2], [0.2, 2.0]], dtype=torch.float64, requires_grad=True)
        return [leaf * 2], [leaf]

    made = graphs(program, make()[0])
    operations = {value.op for value in made.signature.saved}
    assert made.higher.held == {} and not operations & {"input", "aten.add.Tensor"}
    assert_same_gradients(program, make, order=3)


@pytest.mark.parametrize("function", [torch.linalg.det, lambda h: torch.linalg.slogdet(h)[1]])
def test_a_matrix_that_eager_keeps_is_kept(function):
    made = graphs(lambda h: (function(h.cumsum(0) + 1).exp(),), intermediate_inputs((2, 2))()[0])
    assert "aten.add.Tensor" in {value.op for value in made.signature.saved}


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


def test_nothing_is_alive_behind_the_last_backward():
    program, make = PROGRAMS["inner inputs"]
    compiled = compile_program(program, make()[0])
    gc.collect()
    gc.disable()
    try:
        args, leaves = make()
        watched = list(map(weakref.ref, args))
        outs = compiled(args)
        watched += map(weakref.ref, outs)
        first = torch.autograd.grad(outs[0].sum(), leaves, create_graph=True)
        watched += map(weakref.ref, first)
        second = torch.autograd.grad(first[0].square().sum(), leaves, create_graph=True)
        del args, outs, first
        torch.autograd.grad(second[0].sum(), leaves)
        del second
        assert [ref() for ref in watched] == [None] * len(watched)
    finally:
        gc.enable()


def test_a_second_backward_needs_retain_graph():
    x = torch.ones(3, requires_grad=True)
    compiled = compile_program(lambda x: (x.exp().sin(),), [x])
    (out,) = compiled([x])
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    kept = torch.autograd.grad(first.sum(), x, retain_graph=True)
    assert torch.equal(*kept, *torch.autograd.grad(first.sum(), x))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(first.sum(), x)


def test_what_is_refused_is_never_left_out_silently():
    make = inputs((3,))
    compiled = compile_program(of_a_sum, make()[0])
    (x,), _ = make()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        (out,) = compiled([x])
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(of_a_sum(x)[0].sum(), x)[0])
    with pytest.raises(Unsupported, match="MD403") as caught:
        torch.autograd.grad(first.sum(), x, allow_unused=True)
    assert "Hooks for saved tensors" in str(caught.value)


def test_saved_tensors_go_through_hooks():
    def program(x, b):
        return ((x.cumsum(0) * b).exp(),)

    compiled = compile_program(program, inputs((3,), (3,))()[0])

    def hooked(args):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
            return compiled(args)

    got, expected = (second(call, inputs((3,), (3,)))[0] for call in (hooked, lambda args: program(*args)))
    torch.testing.assert_close(got, expected)


class OnlyOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def test_a_function_that_is_differentiable_once_says_so():
    x = torch.ones(3, requires_grad=True)
    compiled = compile_program(lambda x: (OnlyOnce.apply(x),), [x])
    (first,) = torch.autograd.grad(compiled([x])[0].sum(), x, create_graph=True)
    assert torch.equal(first, x.cos()) and not first.requires_grad  # as in eager, which has no other path to `x`
    (first,) = torch.autograd.grad(compiled([x])[0], x, torch.ones(3, requires_grad=True), create_graph=True)
    with pytest.raises(Unsupported, match="MD403") as caught:
        first.sum().backward()
    assert "once_differentiable" in str(caught.value)


def test_a_derivative_that_cannot_be_traced_is_refused(monkeypatch):
    x = torch.ones(3, requires_grad=True)
    compiled = compile_program(lambda x: (x.exp(),), [x])
    (out,) = compiled([x])
    monkeypatch.setattr("minidynamo.autograd.runtime.derivatives.trace_joint", lambda *_: 1 / 0)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.equal(first, out)
    with pytest.raises(Unsupported, match="MD403"):
        first.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("again", [torch.Tensor.mul_, torch.Tensor.lerp_], ids=["mul_", "lerp_"])
def test_the_second_derivative_takes_what_a_written_part_of_an_argument_held(again, backend):
    def program(h):
        part = h.narrow(0, 0, 1)
        part.sin_()
        again(part, *([part] if again is torch.Tensor.lerp_ else []), 0.5)
        return h

    def second(fn):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        (first,) = torch.autograd.grad(fn(x * 1).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert torch.allclose(second(minidynamo.compile(program, backend=backend)), second(program), rtol=1e-5)
