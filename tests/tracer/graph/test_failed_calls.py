"""Errors of torch's calls: the graph ends before the call, and Python raises eager's error there."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager

F = torch.nn.functional


def first_or_double(x):
    try:
        return x[5]
    except IndexError:
        return x * 2


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
    "function",
    [
        first_or_double,
        lambda x: [row * 2 for row in Rows(x)],
        lambda x: (said(x), x + 1),
        lambda x: (length(x.sum()), x + 1),
    ],
)
def test_programs_that_catch_the_error(function):
    assert_same_as_eager(function, lambda: torch.ones(3, 2))


def tells(write):
    def program(x):
        try:
            write(x)
        except (RuntimeError, IndexError) as error:
            return x * 3, type(error), str(error)

    return program


@pytest.mark.parametrize(
    "write",
    [
        lambda x: (x * 2).add_(torch.ones(7)),
        lambda x: (x * 2)[1:].add_(torch.ones(7)),
        lambda x: x.add_(1),
        lambda x: x[0].add_(1),
        lambda x: x.detach().clone().requires_grad_().mul_(2),
        lambda x: (x.softmax(3), F.softmax(x, -4), F.softmin(x, 2)),
        lambda x: x.sort(5),
        lambda x: torch.bucketize(x.detach(), torch.ones(2, 2)),
        lambda x: (x * 2).unbind(0)[0].add_(1),
    ],
)
def test_the_class_and_message_are_those_of_eager(write):
    assert_same_as_eager(tells(write), lambda: torch.ones(3, requires_grad=True))


def test_fullgraph_leaves_an_error_that_nothing_catches_to_the_program():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        minidynamo.compile(lambda x: x @ x, backend="eager", fullgraph=True)(torch.ones(3, 2))
