"""A refused graph: the notice names the user's file, with its folder, and the function and line of the operation."""

import inspect

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice


def leaf():
    return torch.arange(1.0, 5.0, requires_grad=True)


def saved_value(x):
    x = x + 0
    y = x.exp()  # here: MD401
    y.add_(1)
    return y


def one_of_several_saved(x):
    y = x.sin() * x
    z = y.sigmoid()  # here: MD401
    w = z.exp()
    z.add_(1)
    return z + y * w


def inner(x):
    return x.unsqueeze_(0)  # here: MD402


def in_a_callee(x):
    y = x * 2
    inner(x)
    return y


def another_shape(x):
    y = x + 1
    x.t_()  # here: MD402
    return y


def overlapping(x):
    x = x + 1
    x.unfold(0, 2, 1).add_(1)  # here: MD402
    return x


def window(x):
    y = x * 2
    x.mul_(3)
    z = x.as_strided((2,), (1,), 1)  # here: MD402
    return y.sum() + z.sum()


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def shared_with_an_argument(x):
    y = x * 2
    z = Reversed.apply(x)  # here: MD404
    return y, z


def made_without_grad(x):
    y = x.sin()
    with torch.no_grad():
        z = y[1:]  # here: MD404
    y.mul_(2)
    return y, z


class Sized(torch.autograd.Function):
    """Fails in backward without data."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient[:-1]


def in_backward(x):
    y = x.sin()
    z = Sized.apply(y)  # here: MD401
    return z.cos()


def marked_line(*functions):
    """Returns the function, the code and the line that the comment `here` marks."""
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        for number, line in enumerate(lines, first):
            if "# here: " in line:
                return function.__name__, line.strip()[-5:], number
    raise AssertionError


def outcome_of(program, x):
    """Runs a program; returns its values and gradients, or the class of its error."""
    try:
        results = program(x)
        results = results if isinstance(results, tuple) else (results,)
        sum(result.sum() for result in results).backward()
        return [result.detach().tolist() for result in results], x.tolist(), getattr(x.grad, "tolist", list)()
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize(
    ("program", "argument"),
    [
        (saved_value, leaf),
        (one_of_several_saved, leaf),
        (in_a_callee, lambda: torch.ones(3)),
        (another_shape, lambda: torch.ones(2, 3)),
        (overlapping, lambda: torch.ones(4)),
        (window, lambda: torch.ones(4)),
        (shared_with_an_argument, leaf),
        (made_without_grad, leaf),
        (in_backward, leaf),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_refusal_names_the_line_of_the_operation(program, argument):
    function, code, line = marked_line(program, inner)
    compiled = minidynamo.compile(program, backend="aot_eager")
    with pytest.warns(MinidynamoNotice) as notices:
        outcome = outcome_of(compiled, argument())
    assert outcome == outcome_of(program, argument())
    (text,) = (str(notice.message) for notice in notices if str(notice.message).startswith(code))
    assert f"{__file__}:{line} in {function}" in text.splitlines()[0], text
