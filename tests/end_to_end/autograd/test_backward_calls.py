"""Every way to ask compiled functions for gradients: subsets, retained graphs, accumulation, second derivatives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.observe.comparison import seed_generators
from tests.custom_functions import Doubled
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def leaves(*shapes, seed=0):
    seed_generators(seed)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def assert_alike(fn, ask, *shapes, backend, fullgraph=True):
    """Checks that `ask(fn, leaves)` gives equal results for `fn` compiled and eager, three times."""
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=fullgraph)
    for seed in range(3):
        got, expected = ask(compiled, leaves(*shapes, seed=seed)), ask(fn, leaves(*shapes, seed=seed))
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def three(a, b, c):
    h = (a * b).tanh()
    return h * c, (h + a).exp(), b.sin()


SHAPES = [(3, 4)] * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (2, 1, 0)])
def test_gradients_by_some_inputs(backend, wanted):
    def ask(fn, given):
        return torch.autograd.grad(sum(y.sum() for y in fn(*given)), [given[i] for i in wanted])

    assert_alike(three, ask, *SHAPES, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)])
def test_outputs_that_are_not_used(backend, used):
    def ask(fn, given):
        outputs = fn(*given)
        sum(outputs[i].square().sum() for i in used).backward()
        return [leaf.grad for leaf in given]

    assert_alike(three, ask, *SHAPES, backend=backend)


class OfThree:
    """Ways to ask `fn` for gradients, which take its leaves."""

    def a_retained_graph_is_walked_several_times(fn, given):
        first, second, third = fn(*given)
        made = torch.autograd.grad(first.sum(), given[:2], retain_graph=True)
        for output in (second, first, third):
            output.sum().backward(retain_graph=True)
        (first + second + third).sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            first.sum().backward()
        return [*made, *(leaf.grad for leaf in given)]

    def gradients_are_added_to_those_that_are_there(fn, given):
        given[0].grad = torch.full_like(given[0], 7.0)
        there = given[0].grad
        for _ in range(3):
            sum(y.sum() for y in fn(*given)).backward()
        assert given[0].grad is there
        return [leaf.grad for leaf in given]

    def gradients_given_from_outside(fn, given):
        outputs = fn(*given)
        tangents = [torch.randn(4, 3).t(), torch.ones(1).expand(3, 4), torch.zeros(3, 4)]
        return torch.autograd.grad(outputs, given, tangents)

    def hooks_on_outputs(fn, given):
        first, second, _ = fn(*given)
        seen = []
        first.register_hook(lambda g: g * 3)
        second.register_hook(lambda g: seen.append(g.clone()))
        first.retain_grad()
        (first.sum() + second.square().sum()).backward()
        return [*seen, first.grad, *(leaf.grad for leaf in given)]

    def gradients_of_gradients(fn, given):
        made = torch.autograd.grad(sum(y.sum() for y in fn(*given)), given, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in made), given, create_graph=True)
        sum(g.sin().sum() for g in second).backward()
        return [*made, *second, *(leaf.grad for leaf in given)]

    def a_backward_that_is_only_retained_is_not_differentiated_twice(fn, given):
        """With create_graph, the gradients themselves equal the gradients of a simple backward."""
        total = sum(y.sum() for y in fn(*given))
        total.backward(retain_graph=True)
        return [*(leaf.grad.clone() for leaf in given), *torch.autograd.grad(total, given, create_graph=True)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ask", rows_of(OfThree))
def test_ways_to_ask(ask, backend):
    assert_alike(three, ask, *SHAPES, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_without_gradients(backend):
    def fn(x, y):
        h = x * y
        values, places = h.max(1)
        return values, places, h > 0, h.argsort(1), h.detach() * 2, len(x)

    def ask(call, given):
        values, places, mask, order, fixed, length = call(*given)
        assert not any(t.requires_grad for t in (places, mask, order, fixed)) and length == 3
        return [places, mask, order, fixed, *torch.autograd.grad(values.sum(), given)]

    assert_alike(fn, ask, (3, 4), (3, 4), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grad_mode_switched_inside(backend):
    def fn(x, y):
        with torch.no_grad():
            scale = x.exp()
            with torch.enable_grad():
                inner = x * y
            outer = inner + 1
        return scale * y, inner.sin(), outer

    def ask(call, given):
        scaled, inner, outer = call(*given)
        assert not outer.requires_grad
        return [outer, *torch.autograd.grad(scaled.sum() + inner.sum(), given)]

    assert_alike(fn, ask, (3, 4), (3, 4), backend=backend)


# Second derivatives


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 8), nn.SiLU(), nn.Linear(8, 1)
        )

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_with_a_gradient_penalty(backend):
    seed_generators(0)
    critic = Critic()
    reference = copy.deepcopy(critic)
    results = []
    for net in (minidynamo.compile(critic, backend=backend, fullgraph=True), reference):
        seed_generators(1)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(3):
            x = torch.randn(5, 1, 4, 4, requires_grad=True)
            score = net(x)
            (gradient,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            loss = score.mean() + (gradient.flatten(1).norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append([loss.detach(), *(p.detach() for p in net.parameters()), *(p.grad for p in net.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hessian_vector_product(backend):
    def fn(x):
        return (x.pow(3).sum() * x.cos().sum(),)

    def ask(call, given):
        (x,) = given
        v = torch.linspace(0, 1, 4)
        (gradient,) = torch.autograd.grad(call(x)[0], x, create_graph=True)
        return torch.autograd.grad(gradient @ v, x)

    assert_alike(fn, ask, (4,), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_derivative_across_a_graph_break(backend):
    def fn(x, y):
        h = (x * y).exp()
        minidynamo.graph_break()
        return ((h + y).sin() * x,)

    def ask(call, given):
        made = torch.autograd.grad(call(*given)[0].sum(), given, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in made), given)

    assert_alike(fn, ask, (3, 4), (3, 4), backend=backend, fullgraph=False)


# What runs inside


def chain(x):
    for _ in range(3):
        x = Doubled.apply(x.sin())
    return (x,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_custom_function_in_the_chain(backend):
    def ask(fn, given):
        made = torch.autograd.grad(fn(*given)[0].sum(), given, create_graph=True)
        return [*made, *torch.autograd.grad(made[0].sum(), given)]

    assert_alike(chain, ask, (4,), backend=backend)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoints(backend, reentrant):
    def fn(x, w):
        return (checkpoint(lambda a: (a @ w).tanh(), x * 2, use_reentrant=reentrant).sum(),)

    def ask(call, given):
        call(*given)[0].backward()
        return [leaf.grad for leaf in given]

    assert_alike(fn, ask, (3, 4), (4, 2), backend=backend, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function_inside_a_checkpoint(backend):
    inner = minidynamo.compile(lambda a, w: F.gelu(a @ w), backend=backend, fullgraph=True)
    for reentrant in (True, False):
        x, w = leaves((3, 4), (4, 2))
        checkpoint(inner, x * 2, w, use_reentrant=reentrant).sum().backward()
        y, v = leaves((3, 4), (4, 2))
        F.gelu((y * 2) @ v).sum().backward()
        torch.testing.assert_close([x.grad, w.grad], [y.grad, v.grad])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_many_gradients_at_once(backend):
    def program(x):
        return x.sin() * x.exp()

    f = minidynamo.compile(program, backend=backend)
    x = torch.arange(3.0, requires_grad=True)
    (found,) = torch.autograd.grad(f(x), x, torch.eye(3), is_grads_batched=True)
    (expected,) = torch.autograd.grad(program(x), x, torch.eye(3), is_grads_batched=True)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    jacobian = torch.autograd.functional.jacobian(f, x.detach(), vectorize=True)
    torch.testing.assert_close(jacobian, expected)


@pytest.mark.parametrize(
    ("program", "times"),
    [
        (lambda x: x + 1, 2),
        (lambda x: x.reshape(2, -1) + x.sum(), 2),
        (lambda x: x * 2, 1),  # eager saves the number
        (lambda x: x.sin(), 1),
        (lambda x: torch._foreach_add([x], [x])[0], 1),
        (lambda x: torch._foreach_neg([x])[0], 2),
    ],
)
def test_backward_runs_as_often_as_in_eager(program, times):
    """Autograd refuses a second backward only if a node has saved tensors."""
    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    for function in (program, compiled):
        x = torch.arange(4.0).requires_grad_()
        y = function(x)
        for _ in range(times):
            y.backward(torch.ones_like(y))
        if times == 1:
            with pytest.raises(RuntimeError, match="a second time"):
                y.backward(torch.ones_like(y))
            continue
        torch.testing.assert_close(x.grad, times * torch.autograd.grad(program(x).sum(), x)[0])


class Programs:
    def sine_and_double(x):
        y = x.sin()
        return y, y * 2

    def retained_inside(x):
        y = x.sin()
        y.retain_grad()
        return y, y * 2

    def hooked_inside(x):
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 3)
        return y, y * 2

    def broken_behind(x):
        y = x.sin()
        minidynamo.graph_break()
        return y, y * 2


class Asks:
    def grad_of_a_result(y, z, x):
        return torch.autograd.grad((z + 5 * y).sum(), (y, x))

    def backward_to_a_result(y, z, x):
        z.sum().backward(inputs=[y])
        return [y.grad, x.grad]

    def retained_behind_the_call(y, z, x):
        y.retain_grad()
        (z + 5 * y).sum().backward()
        return [y.grad, x.grad]

    def hooked_behind_the_call(y, z, x):
        seen = []
        y.register_hook(lambda gradient: seen.append(gradient) or gradient * 10)
        z.sum().backward()
        return [*seen, x.grad]


@pytest.mark.parametrize("ask", rows_of(Asks))
@pytest.mark.parametrize("fn", rows_of(Programs))
def test_a_gradient_from_one_result_to_another(fn, ask):
    """Computes the gradient after the call, even if the program computes gradients inside, too, or breaks the graph."""
    assert_alike(fn, lambda call, given: ask(*call(*given), *given), (3,), backend="aot_eager", fullgraph=False)


PLACES = torch.tensor([1, 1, 3])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: x[PLACES].sin(), id="subscript"),
        pytest.param(lambda x: torch.index_select(x, 0, PLACES).sin(), id="index_select"),
        pytest.param(lambda x: torch.gather(x, 0, PLACES[:, None]).sin(), id="gather"),
        pytest.param(lambda x: x.scatter(0, PLACES[:, None], 1.0).sin(), id="scatter"),
    ],
)
def test_a_gradient_that_torch_writes_into_is_added_to_one_that_is_there(program, backend):
    """Torch fills the gradient after its allocation; then the gradient is handed over and removed from the results."""
    leaves = [torch.arange(10.0).view(5, 2).requires_grad_() for _ in range(2)]
    for call, leaf in zip((program, minidynamo.compile(program, backend=backend)), leaves):
        for _ in range(3):
            call(leaf).sum().backward()
    assert torch.allclose(leaves[0].grad, leaves[1].grad)
