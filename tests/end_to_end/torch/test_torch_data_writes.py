"""Tensors that stay the same object with new memory, shape or gradient history: `x.data = y`, uses of `.data` and
`.grad` in training code of all ages, and the inputs that backends see."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounter, EagerAndRecordGraphs, assert_same_as_eager
from tests.end_to_end.histories import Histories, compare
from tests.end_to_end.programs import Programs, leaf, two_vectors, vector

programs = Programs()
histories = Histories()
BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
# some programs write to two tensors in the same memory
test_same_as_eager = pytest.mark.filterwarnings("ignore:.*MD402")(programs.test(*BACKENDS))


def layer():
    return nn.Linear(4, 4), torch.randn(2, 4)


def layer_with_gradients():
    m, x = layer()
    for p in m.parameters():
        p.grad = torch.randn_like(p)
    return m, x


@programs(two_vectors)
class Cases:
    def data_of_an_argument(x, y):
        x.data = y * 2
        return x + 1, y

    def data_that_two_tensors_share(x, y):
        x.data = y
        x.add_(1)
        return x, y, x.data

    def a_view_keeps_the_old_memory(x, y):
        first = x[:2]
        x.data = y
        x.mul_(2)
        return first + 1, x

    @programs(lambda: (torch.randn(4), torch.randn(2, 3, dtype=torch.float64)))
    def another_shape_and_dtype(x, y):
        x.data = y
        return x.sum(0), x.shape, x.dtype

    @programs(leaf)
    def a_leaf_keeps_its_place_in_autograd(x):
        y = x.exp()
        x.data = x.data * 0.5
        return y + x.sin(), x.requires_grad

    @programs(lambda: (leaf(), vector()))
    def a_computed_tensor_keeps_its_history(x, y):
        z = x * 2
        z.data = y
        return z, z.requires_grad

    @programs(leaf)
    def a_view_in_other_memory_stays_a_view_for_autograd(x):
        y = x * 1
        first = y[:2]
        first.data = first.data.clone()
        y.zero_()
        return first.sin()

    @programs(lambda: (torch.randn(2, 3), torch.randn(2, 3)), breaks=1)
    def another_shape_behind_a_gradient(x, y):
        x.grad = y
        x.t_()
        return x * 2, x.grad

    @programs(lambda: (torch.randn(2, 3), torch.randn(2, 3)), breaks=1)
    def a_gradient_that_gets_another_shape(x, y):
        x.grad = y
        y.unsqueeze_(0)
        return x.grad * 2, x.grad is y

    @programs(lambda: (torch.randn(2, 3), torch.randn(4)), graphs=2, breaks=1)
    def data_of_another_shape_behind_a_gradient(x, y):
        x.grad = torch.ones(2, 3)
        x.data = y
        return x.grad * 2

    @programs(lambda: (torch.randn(2, 3), torch.randn(2, 3)))
    def data_of_the_same_shape_behind_a_gradient(x, y):
        x.grad = y * 2
        x.data = y
        return x.grad + x

    @programs(layer)
    def weights_that_decay(m, x):
        m.weight.data = m.weight.data * 0.9
        m.bias.data -= 0.1
        m.weight.data *= 2
        return m(x)

    @programs(layer)
    def weights_in_another_precision(m, x):
        return m.double()(x.double())

    @programs(layer)
    def weights_as_one_vector(m, x):
        vector = nn.utils.parameters_to_vector(m.parameters())
        nn.utils.vector_to_parameters(vector * 2, m.parameters())
        return m(x)

    @programs(layer_with_gradients)
    def a_step_by_hand(m, x):
        for p in m.parameters():
            p.data = p.data - 0.1 * p.grad.data
            p.grad = p.grad * 0.5
        del m.bias.grad
        return m(x), m.bias.grad, [p.grad for p in m.parameters()]

    def a_gradient_for_a_new_leaf(x, y):
        z = (x * 2).detach()
        z.grad = y
        w = nn.Parameter(torch.ones(4))
        w.grad = y + 1
        return z.grad + z, z, w, w.grad * 2

    @programs(lambda: (torch.tensor(3.0), vector()))
    def a_number_that_was_replaced(step, x):
        before = step.item()
        step.data = x.sum()
        return x * before, step

    def transforms_before_and_behind(x, y):
        z = torch.vmap(lambda a: a * y.sum())(x)
        x.data = y
        return z, torch.func.grad(lambda a: (a * y).sum())(x)

    @programs(two_vectors, breaks=1, graphs=1)
    def data_that_is_no_tensor(x, y):
        z = x * 2
        try:
            x.data = 3
        except TypeError as error:
            return z, str(error)

    @programs(lambda: (torch.tensor(3.0), vector()), graphs=2)
    def the_number_in_replaced_data(step, x):
        step.data = (x * 0).sum()
        return x * step.item()


@histories
class Calls:
    def layouts_that_were_replaced_are_guarded(compiled):
        @compiled
        def program(x, y):
            x.data = y
            return x * 2, x.shape

        x = torch.ones(3)
        for y in (torch.ones(3), torch.ones(2, 2), torch.ones(2, 2), torch.ones(3, dtype=torch.int64)):
            yield program(x, y), x
        yield program(x, x)

    def a_gradient_that_comes_and_goes(compiled):
        m = nn.Linear(2, 2)

        @compiled
        def program():
            for p in m.parameters():
                if p.grad is not None:
                    p.data = p.data - p.grad
                    p.grad = None
                else:
                    p.grad = torch.ones_like(p)

        for _ in range(4):
            program()
            yield [(p.data, p.grad) for p in m.parameters()]


@pytest.mark.parametrize("history", histories)
def test_same_history_as_eager(history):
    compare(history, "aot_eager")


def test_a_graph_that_fails_has_not_replaced_anything_twice():
    def program(x, i):
        x.data = x.data * 2
        return x[i]

    for index in (1, 7):
        x, y = torch.ones(3), torch.ones(3)
        outcomes = []
        for fn, value in ((program, x), (minidynamo.compile(program, backend="eager"), y)):
            try:
                outcomes.append(fn(value, torch.tensor([index])))
            except IndexError:
                outcomes.append(None)
        assert (outcomes[0] is None) is (outcomes[1] is None) is (index == 7)
        assert x.tolist() == y.tolist() == [2, 2, 2]


def test_the_same_graph_again_and_again():
    counter = CompileCounter()
    m = nn.Linear(2, 2)
    before = m.weight.detach().clone()

    @minidynamo.compile(backend=counter, fullgraph=True)
    def decay():
        m.weight.data = m.weight.data * 0.5

    for _ in range(3):
        decay()
    assert counter.frame_count == 1
    torch.testing.assert_close(m.weight.detach(), before / 8)


BOXED_BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def out_of_another_size(x, y):
    torch.add(x, 1, out=y)
    return y * 2


def resized(x, y):
    y.resize_(3)
    y.copy_(x)
    return y + 1


def another_shape(x, y):
    x.unsqueeze_(0)
    return x * 2, y


def gets_history(x, w):
    x.mul_(w)
    return x * 2, x


def becomes_a_leaf(x, w):
    x.requires_grad_()
    return x * w


def transposed_item(xs, w):
    xs[0].t_()
    return xs[0] * w


def empty():
    return torch.arange(3.0), torch.empty(0)


def weighted():
    return torch.arange(3.0), torch.ones(3, requires_grad=True)


PROGRAMS = [
    *((out_of_another_size, empty), (resized, empty), (another_shape, empty), (gets_history, weighted)),
    *((becomes_a_leaf, weighted), (transposed_item, lambda: ([torch.ones(2, 3)], 2))),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BOXED_BACKENDS)
@pytest.mark.parametrize(("fn", "inputs"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_metadata_writes_are_the_same_as_eager(fn, inputs, backend):
    assert_same_as_eager(fn, inputs, backend=backend, calls=2)


def test_examples_show_inputs_as_they_arrive():
    seen = []

    class Backend(EagerAndRecordGraphs):
        def compile(self, gm, example_inputs):
            seen.extend((tuple(example.shape), example.requires_grad) for example in example_inputs)
            return super().compile(gm, example_inputs)

    assert_same_as_eager(gets_history, weighted, backend=Backend())
    assert_same_as_eager(another_shape, empty, backend=Backend())
    assert seen == [((3,), False), ((3,), True), ((3,), False)]
