from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from minidynamo.observe.comparison import assert_equal_observations, observe, seed_generators, walk


def compare(first, second, make_inputs, **tolerance):
    assert_equal_observations(
        "call 0",
        observe(first, make_inputs, seed=0, backward=True),
        observe(second, make_inputs, seed=0, backward=True),
        tolerance,
    )


def vectors(*names, requires_grad=True):
    return lambda: tuple(torch.randn(4, requires_grad=requires_grad) for _ in names)


def test_seeding_without_accelerators_leaves_nothing_behind(monkeypatch):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("is noted for later"))
    seed_generators(3)
    drawn = torch.rand(4)
    seed_generators(3)
    assert torch.equal(torch.rand(4), drawn)
    assert torch.equal(torch.rand(4, generator=torch.Generator().manual_seed(3)), drawn)


def test_a_function_equals_itself():
    def f(x, y):
        return {"sum": x + y, "parts": [x, y.view(2, 2)]}, torch.rand(3)

    compare(f, f, vectors("x", "y"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, xs: (x * 2.001, xs), r"result\[0\]: Tensor-likes are not close"),
        (lambda x, xs: (x.double() * 2, xs), r"result\[0\].dtype"),
        (lambda x, xs: ((x * 2).detach(), xs), r"result\[0\].requires_grad"),
        (lambda x, xs: [x * 2, xs], "result: type"),
        (lambda x, xs: (x * 2, list(xs)), "identical objects"),
        (lambda x, xs: (x * 2, xs.clear() or xs), "identical objects|values found"),
        (lambda x, xs: (x * 2 + 0 * torch.rand(4), xs), "random state"),
        (lambda x, xs: (x * 2 + 0 * random.random(), xs), "random state of Python's"),
        (lambda x, xs: (print("a") or x * 2, xs), "printed text"),
        (lambda x, xs: (torch.stack([x * 2, x], 1)[:, 0], xs), "strides"),
        (lambda x, xs: ((x.detach() * 4 - x * 2) * 1, xs), "x.grad|grad"),
    ],
)
def test_each_kind_of_difference_is_found(wrong, message):
    def right(x, xs):
        return x * 2, xs

    with pytest.raises(AssertionError, match=message):
        compare(right, wrong, lambda: (torch.ones(4, requires_grad=True), [1, 2]))


def test_an_alias_where_eager_has_a_copy_is_found():
    with pytest.raises(AssertionError, match="shared storage"):
        compare(lambda x: x.clone()[:], lambda x: x[:], vectors("x", requires_grad=False))


def test_a_change_of_an_argument_is_found():
    with pytest.raises(AssertionError, match=r"args\[0\]"):
        compare(lambda x: x + 1, lambda x: x.add_(1).clone(), vectors("x", requires_grad=False))


def test_the_same_exception_is_equal_and_another_is_not():
    def raising(error):
        def f(x):
            raise error

        return f

    compare(raising(ValueError("a")), raising(ValueError("a")), vectors("x"))
    with pytest.raises(AssertionError, match="exception text"):
        compare(raising(ValueError("a")), raising(ValueError("b")), vectors("x"))
    with pytest.raises(AssertionError, match="exception type"):
        compare(raising(ValueError("a")), raising(KeyError("a")), vectors("x"))


def test_gradients_of_module_parameters_and_buffers_are_compared():
    def make():
        return nn.BatchNorm1d(4), torch.randn(3, 4)

    compare(lambda m, x: m(x), lambda m, x: m(x), make)
    with pytest.raises(AssertionError, match="running_mean"):
        compare(lambda m, x: m(x), lambda m, x: nn.functional.batch_norm(x, None, None, m.weight, m.bias, True), make)


def test_walk_visits_objects_once_and_survives_cycles():
    class Node:
        pass

    node = Node()
    node.me, node.items = node, {"a": (1,)}
    assert [path for path, _ in walk({"n": node})] == [
        "n",
        "n.me",
        "n.items",
        "n.items.keys()",
        "n.items['a']",
        "len(n.items['a'])",
        "n.items['a'][0]",
    ]
