"""Tests of minidynamo/tracer/frames/inlining.py: the binding of arguments, and the guards on a function."""

import pytest
import torch

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import vector
from tests.tracer.capturing import capture, guards_on


def recursive(n, x):
    return x if n == 0 else recursive(n - 1, x + n)


@pytest.mark.filterwarnings("ignore:MD302")
def test_calls_that_nest_too_deep_run_through_their_own_dispatchers():
    assert_same_as_eager(lambda x: recursive(100, x), vector, calls=2)


def test_a_function_argument_is_guarded_by_its_code():
    def apply(f, x):
        return f(x)

    def make(n):
        return lambda x: x + n

    traced = capture(apply, make(3), torch.ones(2))
    assert "f.__code__" in {guard.source.display() for guard in traced.guards}
    assert guards_on(traced, "f.__closure__[0]")


CALLS = [
    "f(1, 2)",
    "f(1, b=2)",
    "f(1, 2, 3, 4, key=5)",
    "f(1, a=2)",
    "f()",
    "f(1, 2, key=3, other=4)",
    "f(*[1, 2], **{'key': 7})",
]
FUNCTIONS = [
    lambda a, b=2: (a, b),
    lambda a, /, b=3, *rest, key=4: (a, b, rest, key),
    lambda a, /, **others: (a, others),
    lambda *args, key: (args, key),
    lambda a, b, *, key: (a, b, key),
]


@pytest.mark.filterwarnings("ignore:MD")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_are_bound_as_python_binds_them(call, function):
    namespace = {"f": function}
    exec(f"def program(x):\n    try:\n        return {call}\n    except TypeError:\n        return x", namespace)
    assert_same_as_eager(namespace["program"], vector, calls=1)
