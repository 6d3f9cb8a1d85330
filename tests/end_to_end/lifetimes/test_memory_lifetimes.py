"""Memory dies at the operation at which it dies in plain Python, whichever backend runs the graph."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import StorageWatch, assert_freed_before, no_recompile, probe
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
WITH_PYTHON = [None, *BACKENDS]


def compiled(fn, backend, **keywords):
    return fn if backend is None else minidynamo.compile(fn, backend=backend, **keywords)


def cleared_list(xs):
    a, b = xs
    xs.clear()
    c = a + 1
    del a
    c = probe(c)
    return c * b


def kept_list(xs):
    a, b = xs
    c = a + 1
    del a
    c = probe(c)
    return c * b


def pop_first(xs):
    a = xs.pop(0)
    c = a + xs[0]
    del a
    return probe(c)


def delete_first(xs):
    a = xs[0]
    del xs[0]
    c = a + xs[0]
    del a
    return probe(c)


@pytest.mark.parametrize("backend", WITH_PYTHON)
def test_an_element_of_a_kept_list_lives(backend):
    f = compiled(kept_list, backend)
    xs = [torch.ones(4), torch.ones(4)]
    watch = StorageWatch(a=xs[0], b=xs[1])
    f(xs)
    assert len(xs) == 2
    assert watch.seen == [["a", "b"]]


class Box:
    pass


class Overwriting:
    def in_an_attribute(box, x):
        for _ in range(3):
            box.state = watched(x)
            x = probe(box.state * 2)
        return x

    def in_an_attribute_of_something_new(box, x):
        made = Box()
        for _ in range(3):
            made.state = watched(x)
            x = probe(made.state * 2)
        return made, x

    def in_a_variable_of_a_closure(box, x):
        for _ in range(3):
            state = watched(x)
            x = probe(state * 2)
        return (lambda: state), x

    def in_a_gradient(box, x):
        for _ in range(3):
            box.parameter.grad = watched(x)
            x = probe(box.parameter.grad * 2)
        return x


@torch.library.custom_op("minidynamo_test_lifetimes::watched", mutates_args=())
def watched(x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    lifetimes.append(StorageWatch(made=made))
    return made


@watched.register_fake
def _(x):
    return torch.empty_like(x)


lifetimes: list[StorageWatch] = []


@pytest.mark.parametrize("backend", WITH_PYTHON)
@pytest.mark.parametrize("body", rows_of(Overwriting))
def test_what_is_written_over_dies(body, backend):
    f = compiled(body, backend)
    for _ in range(2):
        lifetimes.clear()
        box = Box()
        box.parameter = torch.ones(4, requires_grad=True)
        result = f(box, torch.ones(4))
        assert [len(watch.seen) for watch in lifetimes] == [3, 2, 1]
        assert not any(alive for watch in lifetimes for alive in watch.seen[1:])
        del result


@pytest.mark.parametrize("backend", WITH_PYTHON)
@pytest.mark.parametrize("read", [False, True])
def test_what_backward_does_not_read_dies_in_forward(backend, read):
    """Frees an inner tensor that even a second derivative does not need, although it may be requested."""

    def body(h):
        y = h.sigmoid()
        if read:
            y = y * h
        del h
        y = probe(y)
        return y.exp()

    watches = []

    def make():
        h = x * 2
        watches.append(StorageWatch(h=h))
        return h

    f = compiled(body, backend)
    x = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    for _ in range(2):
        result = f(make())
        assert watches[-1].seen == [["h"] if read else []]
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        found = torch.autograd.grad(gradient.sum(), x)
    h = x * 2
    (gradient,) = torch.autograd.grad((h.sigmoid() * (h if read else 1)).exp().sum(), x, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(gradient.sum(), x))


def popped_keyword(**given):
    x = given.pop("x")
    y = x + 1
    del x
    return probe(y) * 2


def deleted_keyword(**given):
    y = given["x"] + 1
    del given["x"]
    return probe(y) * 2


@pytest.mark.parametrize("backend", WITH_PYTHON)
@pytest.mark.parametrize("fn", [popped_keyword, deleted_keyword])
def test_a_keyword_that_is_taken_out_dies_at_its_last_use(backend, fn):
    f = compiled(fn, backend)
    watches = []

    def make():
        x = torch.ones(4)
        watches.append(StorageWatch(x=x))
        return x

    for _ in range(2):
        result = f(x=make())
        assert result.tolist() == [4.0] * 4
        assert watches[-1].seen == [[]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [pop_first, delete_first])
def test_pop_and_del_give_one_element_up(backend, fn):
    f = compiled(fn, backend)
    xs = [torch.ones(4), torch.ones(4)]
    watch = StorageWatch(first=xs[0], second=xs[1])
    f(xs)
    assert len(xs) == 1
    assert watch.seen == [["second"]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_is_one_placeholder(backend):
    f = compiled(cleared_list, backend)
    f([torch.ones(4), torch.ones(4)])
    (graph,) = f.graphs
    assert len([node for node in graph.graph.nodes if node.op == "placeholder"]) == 1
    with no_recompile():
        f([torch.zeros(4), torch.ones(4)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_tensors_die_inside_backward(backend):
    alive = []

    class Saved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            watch.look()
            alive.append(watch.seen[-1])
            return grad

    def body(x):
        y = x.sin()
        return y, y.exp()

    f = compiled(body, backend)
    x = torch.ones(4, requires_grad=True)
    y, z = f(Saved.apply(x))
    watch = StorageWatch(z=z)
    loss = z.sum()
    del y, z
    loss.backward()
    # exp saves its result for backward, and frees the result before the gradient leaves the graph.
    assert alive == [[]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_check_that_users_have(backend):
    f = compiled(cleared_list, backend)
    xs = [torch.ones(4), torch.ones(4)]
    with assert_freed_before(xs[0]):
        f(xs)
    xs = [torch.ones(4), torch.ones(4)]
    with pytest.raises(AssertionError, match="tensor 0"), assert_freed_before(xs[1]):
        f(xs)
