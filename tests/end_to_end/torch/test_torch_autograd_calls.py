"""Parameters created in compiled functions, changes of requires_grad, and gradients computed inside."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import functional

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, two_vectors, vector

programs = Programs()
BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
test_same_as_eager = programs.test(*BACKENDS)


class Grows(nn.Module):
    def forward(self, x):
        if not hasattr(self, "weight"):
            self.weight = nn.Parameter(torch.ones(x.shape[-1]) * 2)
        return x * self.weight


@programs(vector)
class NewParameters:
    def parameter_of_an_input(x):
        p = nn.Parameter(x)
        return p, p.sin(), type(p), p.requires_grad, p.is_leaf, p.grad

    def parameter_without_gradient(x):
        p = nn.Parameter(x, requires_grad=False)
        return p, p.sin(), isinstance(p, nn.Parameter)

    def parameter_of_an_intermediate(x):
        p = nn.Parameter(x + 123)
        return p, p.sin()

    def parameter_without_gradient_of_an_intermediate(x):
        p = nn.Parameter(x + 123, requires_grad=False)
        return p, p.sin()

    @programs(lambda: (torch.randn(2, 3, requires_grad=True),))
    def no_gradient_through_a_parameter(x):
        p = nn.Parameter(x * 2)
        return (p * x).sum(), p

    @programs(lambda: (torch.randn(2, 3),))
    def parts_of_a_parameter(x):
        p = nn.Parameter(x * 2)
        return p[0] * 2, p[..., 1].sin(), p

    @programs(lambda: (Grows(), torch.randn(3)))
    def a_module_that_makes_its_parameter(m, x):
        return m(x), [name for name, _ in m.named_parameters()], m.weight

    def a_layer_made_inside(x):
        layer = nn.Linear(4, 2)
        return layer(x), layer.weight, layer.weight.requires_grad

    def an_argument_gets_gradients(x):
        x.requires_grad_()
        return x.sin(), x.requires_grad

    @programs(leaf)
    def an_argument_loses_gradients(x):
        y = x * 2
        x.requires_grad_(False)
        return y, x * 3, (x * 3).requires_grad

    def an_intermediate_gets_gradients(x):
        y = x * 2
        z = y.exp()
        y.requires_grad = True
        return y, y * 3, z, z.requires_grad

    @programs(lambda: (nn.Linear(4, 4), torch.randn(4)))
    def freezing_a_module(m, x):
        before = m(x)
        m.requires_grad_(False)
        return before, m(x), [p.requires_grad for p in m.parameters()]

    @programs(leaf, breaks=1)
    def what_eager_refuses(x):
        y = x * 2
        try:
            y.requires_grad_(False)
        except RuntimeError as error:
            return y, str(error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("of", ["input", "intermediate"])
def test_DP_4_parameters_made_inside(backend, requires_grad, of):
    def fn(x):
        p = nn.Parameter(x if of == "input" else x + 123, requires_grad=requires_grad)
        return p, p.sin()

    x = torch.randn(4)
    p, y = minidynamo.compile(fn, backend=backend, fullgraph=True)(x)
    assert type(p) is nn.Parameter and p.requires_grad is requires_grad and p.is_leaf
    assert (p.data_ptr() == x.data_ptr()) is (of == "input")
    torch.testing.assert_close(y, fn(x)[1])
    if requires_grad:
        y.sum().backward()
        torch.testing.assert_close(p.grad, p.detach().cos())


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_views_made_without_gradients(backend):
    def program(x):
        with torch.no_grad():
            y, z = x[1:], x[:2]
        y.requires_grad_()
        return y, z

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for run in (program, compiled):
        y, z = run(torch.randn(4, requires_grad=True))
        (y.sum() + z.sum()).backward()
        assert y.grad.tolist() == [1, 1, 1] and z.grad is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_attribute_of_leaves_alone(backend):
    """The method accepts the same value for inner tensors, and changes nothing."""

    def program(x):
        x.requires_grad = True
        return x * 2

    compiled = minidynamo.compile(program, backend=backend)
    for is_leaf in (True, False, True):
        x = torch.ones(2, requires_grad=True)
        for run in (program, compiled):
            if is_leaf:
                assert run(x).requires_grad
            else:
                with pytest.raises(RuntimeError, match="of leaf variables"):
                    run(x * 1)


# torch.autograd.functional is plain Python around `torch.autograd.grad`

CUBES = lambda t: (t**3).sum()


@programs(leaf)
class GradientsInside:
    def gradient_of_an_argument(x):
        (g,) = torch.autograd.grad((x * x).sum(), x)
        return g * 2

    @programs(vector)
    def gradient_of_a_new_leaf(x):
        y = x.detach().clone().requires_grad_(True)
        energy = (y.sin() * y).sum()
        (force,) = torch.autograd.grad(energy, y)
        return -force, energy.detach()

    def gradient_of_an_intermediate(x):
        y = x.sin()
        z = y.exp()
        (g,) = torch.autograd.grad((z * y).sum(), y)
        return g + 1

    @programs(lambda: (leaf(), leaf()))
    def several_with_given_gradients(x, y):
        a, b = torch.autograd.grad([x * y, y.exp()], [x, y], [x.detach(), torch.ones(4)])
        return a.sin() + b

    def twice_through_one_graph(x):
        y = (x * x).sum()
        (a,) = torch.autograd.grad(y, x, retain_graph=True)
        (b,) = torch.autograd.grad(y, x)
        return a + b

    @programs(lambda: (nn.Linear(4, 1), torch.randn(3, 4)))
    def gradient_penalty(m, x):
        x = x.detach().requires_grad_()
        score = m(x).tanh().sum()
        (g,) = torch.autograd.grad(score, x, create_graph=True)
        return score + (g.norm(2, dim=1) - 1).pow(2).mean()

    @programs(leaf, breaks=1)
    def unused_inputs_are_none(x):
        y = x.detach().requires_grad_()
        return torch.autograd.grad(x.sum(), [x, y], allow_unused=True)

    @programs(two_vectors, graphs=1, breaks=1)
    def errors_are_eagers(x, y):
        try:
            torch.autograd.grad(x.sum(), y)
        except RuntimeError as error:
            return str(error).partition(".")[0], y + 1

    @programs(leaf, graphs=2, breaks=1)
    def backward_inside(x):
        y = (x * x).sum()
        y.backward()
        return y.detach() + x.grad

    @programs(lambda: (torch.randn(3, requires_grad=True), torch.randn(3)))
    def gradients_of_the_values_of_a_dict(x, y):
        parameters = {"a": x * 2, "b": y.requires_grad_()}
        first, second = torch.autograd.grad([(parameters["a"] * y).sum()], parameters.values(), create_graph=True)
        return first * x, second

    @programs(leaf, vector, graphs=2)
    def jacobian_and_hessian(x):
        return functional.jacobian(torch.sin, x), functional.hessian(CUBES, x * 2)

    def jacobian_of_several(x):
        both = functional.jacobian(lambda a, b: (a * b, (a + b).sum()), (x, x * 2), create_graph=True)
        return both[0][1].sum() + both[1][1].sum()

    @programs(vector)
    def products_with_a_vector(x):
        direction = torch.ones(4)
        return (
            functional.hvp(CUBES, x, direction),
            functional.vhp(CUBES, x, direction),
            functional.vjp(torch.exp, x, direction),
            functional.jvp(torch.exp, x, direction, create_graph=True, strict=True),
        )

    @programs(vector)
    def jacobian_that_is_wrong(x):
        try:
            functional.jacobian(lambda t: 3, x)
        except TypeError as error:
            return x + 1, str(error)[:20]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_what_was_computed_outside(backend):
    fn = lambda x, h, y: torch.autograd.grad((x * h).sum() + y.sum(), x, retain_graph=True)[0] + 1

    def inputs():
        x = torch.arange(4.0, requires_grad=True)
        return x, x.exp(), x * x

    actual = minidynamo.compile(fn, backend=backend)(*inputs())
    torch.testing.assert_close(actual, fn(*inputs()))


# Views that are older than a write


def _whole_after_a_write(x):
    view = x[...]
    x.mul_(2)
    x.requires_grad_()
    return view


def _rows_after_writes(x):
    view = x[1:]
    for row in x.unbind(0):
        row.mul_(2)
    x.requires_grad_()
    return view * 3, view


def _after_the_write(x):
    x.mul_(2)
    view = x[1:]
    x.requires_grad_()
    return view


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_whole_after_a_write, _rows_after_writes, _after_the_write])
@pytest.mark.filterwarnings("ignore:MD404")
def test_a_view_that_is_older_than_a_write_leads_to_what_requires_grad(program, backend):
    def seen(call):
        x = torch.ones(3, 2)
        made = call(x)
        views = made if isinstance(made, tuple) else (made,)
        if views[0].grad_fn is not None:
            sum(view.sum() for view in views).backward()
        return [(v.is_leaf, v.requires_grad, v.detach().tolist()) for v in views], x.grad

    (expected, gradient), (made, got) = seen(program), seen(minidynamo.compile(program, backend=backend))
    assert made == expected
    assert got is gradient is None or torch.equal(got, gradient)


def _first_order_steps(w, tasks):
    """First-order meta learning: tensors saved by the steps of a task are freed before the steps of the next task,
    losses stay."""
    total = 0
    for x, y in tasks:
        (gradient,) = torch.autograd.grad(nn.functional.mse_loss(x @ w, y), [w])
        total = total + nn.functional.mse_loss(x @ (w - 0.1 * gradient), y)
    return total


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_inside_free_nothing_that_later_ones_need(backend):
    def arguments():
        w = torch.randn(4, 2, requires_grad=True)
        return w, [(torch.randn(3, 4), torch.randn(3, 2)) for _ in range(3)]

    assert_same_as_eager(_first_order_steps, arguments, calls=2, backend=backend, rtol=1e-5, atol=1e-6, breaks=0)
