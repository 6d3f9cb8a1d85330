"""Rehearsals predict the memory of eager by running operations on tensors without data."""

from __future__ import annotations

import pytest
import torch.fx

import minidynamo
from minidynamo.autograd.eager_peak.rehearsal import EagerMemory, eager_memory
from minidynamo.backends.registry import boxed_nop

MATRIX = 64 * 64 * 4


def foreseen(program, *given, **how):
    """Returns the prediction for the captured graph of a program."""
    found = []

    def backend(gm, example_inputs):
        found.append(eager_memory(gm, example_inputs))
        return boxed_nop(gm, example_inputs)

    minidynamo.compile(program, backend=backend, fullgraph=True, **how)(*given)
    return found[0]


def matrix(trains=False):
    return torch.ones(64, 64).requires_grad_(trains)


def added(x):
    x.add_(1)


def without_gradients(x):
    with torch.no_grad():
        return (x * 2).exp()


@pytest.mark.parametrize(
    ("program", "trains", "peak", "between", "forward"),
    [
        (lambda x: (x * 2).exp(), False, 2, 1, 2),
        (lambda x: (x * 2).exp_(), False, 1, 1, 1),
        (added, False, 0, 0, 0),
        (lambda x: x.t(), False, 0, 0, 0),
        # exp saves its result; backward holds the saved tensor, the incoming gradient and their product.
        (lambda x: x.exp(), True, 3, 1, 1),
        # sin and cos keep x, their gradients are added in place: cos(x), the gradient that arrives, the first product.
        (lambda x: x.sin() + x.cos(), True, 4, 1, 3),
        (without_gradients, True, 2, 1, 2),
        # A product of tensors of two dtypes reads a converted copy.
        (lambda x: x * x.bool(), False, 2.25, 1, 2.25),
    ],
)
def test_what_lives_is_counted(program, trains, peak, between, forward):
    assert foreseen(program, matrix(trains)) == EagerMemory(peak * MATRIX, between * MATRIX, forward * MATRIX)


def test_gradients_may_come_in_as_one_number_each():
    assert eager_memory(torch.fx.symbolic_trace(lambda x: x.exp()), [matrix(True)], repeated=True) == EagerMemory(
        2 * MATRIX + 4, MATRIX, MATRIX
    )


def test_an_argument_with_history_is_written_as_in_eager():
    x, h = matrix(True), matrix()
    assert foreseen(lambda h, x: h.copy_(x).sum(), h, x) == EagerMemory(MATRIX + 4 + MATRIX, 4, 4)


def test_sizes_that_vary_are_those_of_the_call():
    assert foreseen(lambda x: (x * 2).exp(), matrix(), dynamic=True) == EagerMemory(2 * MATRIX, MATRIX, 2 * MATRIX)


def test_what_a_program_holds_does_not_count():
    weight = matrix()
    assert foreseen(lambda x: x @ weight, matrix()) == EagerMemory(MATRIX, MATRIX, MATRIX)


def test_what_hangs_on_data_is_not_foreseen():
    assert eager_memory(torch.fx.symbolic_trace(lambda x: x.nonzero() + 1), [matrix()]) is None
