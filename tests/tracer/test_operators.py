# Programs are written as users write them, not as a linter would.
# ruff: noqa: RUF005, SIM300

import operator

import pytest
import torch

from minidynamo.tracer.operator_table import BINARY, IN_PLACE, UNARY
from minidynamo.tracer.registry import FUNCTIONS
from tests.end_to_end.programs import Programs, two_vectors, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class Left:
    def __init__(self, log):
        self.log = log

    def __add__(self, other):
        self.log.append("Left.__add__")
        return NotImplemented

    def __lt__(self, other):
        return "lt"

    def __eq__(self, other):
        return other == 1

    def __contains__(self, item):
        return item == 2

    def __len__(self):
        return 0


class Right(Left):
    def __radd__(self, other):
        self.log.append("Right.__radd__")
        return "radd"

    def __iadd__(self, other):
        self.log.append("Right.__iadd__")
        return self

    def __neg__(self):
        return "neg"

    def __getitem__(self, key):
        return key

    def __setitem__(self, key, value):
        self.log.append((key, value))

    def __bool__(self):
        return True


@programs()
def special_methods_in_order(x):
    log = []
    left, right = Left(log), Right(log)
    results = [left + right, 1 + right, -right, left < 3, 3 > left, left == 1, left != 2, 2 in left, 3 in left]
    right += 1
    right[1:2] = 3
    return results, right[4], log, not left, bool(right), x + 1


@programs(graphs=0, breaks=1)
def no_such_operator_raises(x):
    return Left([]) - 1


@programs(two_vectors)
def tensors_and_others(x, y):
    return x == None, x is None, 2 - x, [1] * 2, (1,) + (2,), x is x, "a" * 3, x + y  # noqa: E711


@programs(lambda: (vector(), [1, 2]))
def lists(x, items):
    items += [3]
    items *= 2
    return items == [1, 2, 3] * 2, items < [2], [x][0] + 1, [1] + [2], 3 in items


@programs(graphs=1, breaks=1)
def looking_into_a_tensor(x):
    return 3 in (x + 1)


def test_every_operator_of_python_has_its_handler():
    for function in (*BINARY, *IN_PLACE, *UNARY, operator.getitem, operator.contains, operator.is_, operator.not_):
        assert id(function) in FUNCTIONS
    assert torch.is_grad_enabled()
