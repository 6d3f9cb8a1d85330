"""Programs that give an input a new shape, memory or gradient history: backends see the original inputs."""

from __future__ import annotations

import pytest
import torch

from minidynamo.testing import EagerAndRecordGraphs, assert_same_as_eager

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


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
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fn", "inputs"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_same_as_eager(fn, inputs, backend):
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
