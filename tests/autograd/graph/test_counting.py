"""Storages are counted from birth to death."""

import torch

from minidynamo import compat
from minidynamo.autograd.graph.counting import StorageCounter
from minidynamo.fake import mode

MATRIX = 64 * 64 * 4


def counted(program):
    """Returns the count after a program of one argument, which exists before the count begins."""
    counting = StorageCounter()
    with mode.FakeTensorMode():
        x = torch.empty(64, 64)
        counting.record([x], counts=False)
        with counting:
            made = program(x)
    return counting, made


def test_the_most_at_one_time_and_what_is_left():
    counting, made = counted(lambda x: (x + 1).sin().sum(0))
    assert (counting.peak, counting.level) == (2 * MATRIX, 64 * 4)
    del made
    assert counting.level == 0


def test_what_has_arrived_is_forgotten_when_it_dies():
    """Torch allocates a second tensor at the same address."""
    counting, made = counted(lambda x: x + 1)
    counting.from_outside.add(compat.memory_of(made))
    del made
    assert not counting.from_outside


def test_views_are_what_they_are_views_of():
    counting, _made = counted(lambda x: (x.t()[:3], (x + 1).t()))
    assert (counting.peak, counting.level) == (MATRIX, MATRIX)


def test_what_a_kernel_takes_inside_is_gone_behind_it():
    counting, _made = counted(lambda x: x * x.bool())
    assert (counting.peak, counting.level) == (MATRIX // 4 + 2 * MATRIX, MATRIX)


def test_functions_of_several_operations_are_counted_step_by_step_in_inference_mode():
    with torch.inference_mode():
        counting, _made = counted(lambda x: torch.nn.functional.hinge_embedding_loss(x, x))
    assert counting.peak > 2 * MATRIX and counting.level == 4
