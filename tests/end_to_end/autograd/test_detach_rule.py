"""Inputs without a gradient: autograd does not walk into their history, and leaves are passed unchanged."""

import pytest
import torch

import minidynamo

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
COMPILED = BACKENDS[1:]


def scaled(x, p):
    return x * p.detach()


def leaf():
    return torch.ones(4, requires_grad=True)


def compiled(fn, backend):
    return minidynamo.compile(fn, backend=backend, fullgraph=True)


def targets(y):
    """Returns the gradient functions that the node of a compiled graph depends on."""
    return [function for function, _ in y.grad_fn.next_functions]


@pytest.mark.parametrize("backend", COMPILED)
def test_DET_1_a_leaf_is_an_input_of_the_node(backend):
    x, p = leaf(), torch.full((4,), 2.0, requires_grad=True)
    y = compiled(scaled, backend)(x, p)
    variables = [function.variable for function in targets(y) if hasattr(function, "variable")]
    assert any(v is p for v in variables) and any(v is x for v in variables)
    y.sum().backward()
    assert p.grad is None and torch.equal(x.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize("backend", COMPILED)
def test_DET_2_history_is_not_walked_into(backend):
    x, b = leaf(), torch.full((4,), 2.0, requires_grad=True)
    y = compiled(scaled, backend)(x, b * 1)
    assert len([function for function in targets(y) if function is not None]) == 1
    y.sum().backward()
    assert b.grad is None and torch.equal(x.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_DET_3_history_can_be_walked_later(backend):
    x, base = leaf(), leaf()
    mid = base * 5
    compiled(scaled, backend)(x, mid).sum().backward()
    assert base.grad is None and torch.equal(x.grad, torch.full((4,), 5.0))
    mid.sum().backward()
    assert torch.equal(base.grad, torch.full((4,), 5.0))


class Keeping(torch.autograd.Function):
    """Saves both arguments, and returns no gradient for the second."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x, p)
        return x * p

    @staticmethod
    def backward(ctx, gradient):
        _, p = ctx.saved_tensors
        return gradient * p, None


def keeping(x, p):
    return Keeping.apply(x, p)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_DET_4_a_leaf_is_saved_itself(backend, is_leaf):
    x, p = leaf(), torch.full((4,), 2.0, requires_grad=True)
    given = p if is_leaf else p * 1
    y = compiled(keeping, backend)(x, given)
    saved = y.grad_fn.saved_tensors
    assert any(tensor is p for tensor in saved) == is_leaf
    assert any(torch.equal(tensor, p) for tensor in saved)
    y.sum().backward()
    assert p.grad is None and torch.equal(x.grad, torch.full((4,), 2.0))


def hooked(fn, is_leaf):
    """Returns the gradients of x, and the arguments of the hooks of p."""
    x, p = leaf(), torch.full((4,), 2.0, requires_grad=True)
    given, seen = (p if is_leaf else p * 1), []
    given.register_hook(lambda g: seen.append(("hook", None if g is None else g.clone())))
    if is_leaf:
        p.register_post_accumulate_grad_hook(lambda t: seen.append(("accumulated", t.grad)))
    fn(x, given).sum().backward()
    return x.grad, p.grad, seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_DET_5_hooks_of_a_leaf_fire_as_in_eager(backend):
    assert str(hooked(compiled(keeping, backend), True)) == str(hooked(keeping, True))


@pytest.mark.parametrize("backend", COMPILED)
def test_DET_6_hooks_of_an_inner_tensor_are_silent_and_its_backward_works(backend):
    """Eager calls the hook with None and frees the history of p; docs/architecture.md describes the difference."""
    assert hooked(compiled(keeping, backend), False)[2] == []
    x, base = leaf(), leaf()
    p = base.exp()
    compiled(keeping, backend)(x, p).sum().backward()
    p.sum().backward()
    torch.testing.assert_close(base.grad, base.detach().exp())
    p = base.exp()
    keeping(x, p).sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        p.sum().backward()


def detached(x, p):
    return x * p.detach()


def two_results(x, p):
    return x * p.detach(), x.sin()


def only_where_it_is_not_differentiable(x, p):
    with torch.no_grad():
        scale = p.exp()
    return x * scale + p.argmax()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [detached, two_results, only_where_it_is_not_differentiable])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_hooks_of_a_leaf_that_autograd_does_not_come_to_are_silent(program, create_graph, backend):
    def seen(fn):
        x, p, log = leaf(), leaf(), []
        p.register_hook(lambda gradient: log.append("p"))
        p.register_post_accumulate_grad_hook(lambda tensor: log.append("p has one"))
        x.register_hook(lambda gradient: log.append("x"))
        results = fn(x, p)
        loss = results.sum() if isinstance(results, torch.Tensor) else sum(map(torch.sum, results))
        loss.backward(create_graph=create_graph)
        assert p.grad is None
        return log, x.grad

    found, gradient = seen(compiled(program, backend))
    expected, expected_gradient = seen(program)
    assert found == expected == ["x"]
    torch.testing.assert_close(gradient, expected_gradient)
