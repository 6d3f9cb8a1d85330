"""Random Python programs equal eager: results, arguments afterwards, gradients, printed text, exceptions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from minidynamo.observe.comparison import observe
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.random.own_failures import RANDOM, own_failures
from tests.end_to_end.random.random_python import RandomProgram, inputs, other_inputs, programs

# An eager run of a frame triggers a notice, and is correct.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")


def check(program: RandomProgram) -> None:
    """Compares two calls with each of two kinds of arguments."""
    fn = program.build()
    with own_failures() as failures:
        backward = has_backward(fn)
        assert_same_as_eager(fn, inputs, other_inputs, calls=2, backward=backward, recompile_limit=64)
    assert not failures, "\n".join(failures)


def has_backward(fn) -> bool:
    """True if eager itself can differentiate: a program may write to tensors that its backward needs."""
    try:
        for number, make in enumerate([inputs, inputs, other_inputs, other_inputs]):
            observe(fn, make, seed=number, backward=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return False
    return True


@settings(max_examples=100, **RANDOM)
@given(program=programs())
def test_random_programs_equal_eager(program):
    check(program)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=2000, **RANDOM)
@given(program=programs())
def test_many_random_programs_equal_eager(program):
    check(program)
