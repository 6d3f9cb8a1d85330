"""Errors of fake tensors are eager's errors, with eager's messages; errors after accepted or partly run operations are
not raised."""

from __future__ import annotations

import operator

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.graph.eager_errors import eager_error

F = torch.nn.functional
X, INTS = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (operator.getitem, (X, 5)),
        (operator.getitem, (X, (0, slice(None), 1))),
        (operator.setitem, (X[:, 0], slice(0, 2), X)),
        (operator.matmul, (X, X)),
        (torch.cat, ([X, X[0]],)),
        (F.layer_norm, (X, (3,))),
        ("view", (X, 7)),
        ("add_", (X, torch.ones(7))),
        ("backward", (X,)),
    ],
)
def test_eager_is_asked(target, args):
    call = (lambda *args: getattr(args[0], target)(*args[1:])) if isinstance(target, str) else target
    with pytest.raises(Exception) as real:
        call(*args)
    error, is_said = eager_error(target, args, {}, type(real.value)())
    assert (type(error), error.args, is_said) == (type(real.value), real.value.args, True)


def test_words_about_what_tensors_hold_are_not_said():
    empty, place = torch.ones(0, 2), torch.tensor(0)
    assert eager_error(operator.getitem, (empty, place), {}, IndexError())[1] is False
    assert eager_error(operator.getitem, (X, 5), {}, IndexError())[1] is True


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "error"),
    [
        pytest.param(operator.add, (X, 1), {}, RuntimeError(), id="eager takes it"),
        pytest.param(operator.getitem, (X, 5), {}, RuntimeError(), id="another class"),
        pytest.param(torch._foreach_add_, ([X, X], [X, torch.ones(7)]), {}, RuntimeError(), id="a list is written to"),
        pytest.param(torch.add, (X, torch.ones(7)), {"out": X}, RuntimeError(), id="out"),
        pytest.param(
            operator.matmul, (torch.ones(1).expand(2**11, 2**11).clone(),) * 2, {}, RuntimeError(), id="large"
        ),
        pytest.param(lambda x: x[5], (X,), {}, IndexError(), id="not torch's"),
        pytest.param(operator.getitem, (X, object()), {}, TypeError(), id="an object"),
    ],
)
def test_what_is_not_known(target, args, kwargs, error):
    assert eager_error(target, args, kwargs, error) is None


def test_the_state_of_random_numbers_stays():
    before = torch.get_rng_state()
    assert eager_error("random_", (INTS, 5, 3), {}, RuntimeError()) is not None
    assert before.equal(torch.get_rng_state())


def first_or_double(x):
    try:
        return x[5]
    except IndexError:
        return x * 2


def test_one_version_for_all_sizes_that_are_refused():
    compiled = minidynamo.compile(first_or_double, backend="eager", fullgraph=True)
    for size in (3, 4, 5, 7, 9):
        x = torch.arange(float(size))
        assert torch.equal(compiled(x), first_or_double(x))
    assert minidynamo.stats(compiled).recompiles == 2


class Rows:
    """A data set in the style of users: iteration ends where its tensor refuses a subscript."""

    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        return self.data[index]


def said(x):
    try:
        return x @ x
    except RuntimeError as error:
        return str(error)


def length(x):
    try:
        return len(x)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize(
    "function", [lambda x: [row * 2 for row in Rows(x)], lambda x: (said(x), x + 1), lambda x: (length(x.sum()), x + 1)]
)
def test_programs(function):
    assert_same_as_eager(function, lambda: torch.ones(3, 2), breaks=0)


def tells(write):
    def program(x):
        try:
            write(x)
        except (RuntimeError, IndexError) as error:
            return x * 3, type(error), str(error)

    return program


@pytest.mark.parametrize(
    ("write", "breaks"),
    [
        (lambda x: (x * 2).add_(torch.ones(7)), 0),
        (lambda x: (x * 2)[1:].add_(torch.ones(7)), 0),
        (lambda x: x.add_(1), 0),
        (lambda x: x[0].add_(1), 0),
        (lambda x: x.detach().clone().requires_grad_().mul_(2), 0),
        (lambda x: (x.softmax(3), F.softmax(x, -4), F.softmin(x, 2)), 0),
        (lambda x: x.sort(5), 0),
        (lambda x: torch.bucketize(x.detach(), torch.ones(2, 2)), 0),
        (lambda x: (x * 2).unbind(0)[0].add_(1), 2),  # in the function, and in its callee
    ],
)
def test_what_fake_tensors_say_in_other_words_or_take(write, breaks):
    assert_same_as_eager(tells(write), lambda: torch.ones(3, requires_grad=True), breaks=breaks)


def test_where_it_refused_is_raised_where_nobody_catches_it():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        minidynamo.compile(lambda x: x @ x, backend="eager", fullgraph=True)(X)
