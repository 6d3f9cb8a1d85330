"""Storages are counted from birth to death."""

import torch

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


def test_views_are_what_they_are_views_of():
    counting, _made = counted(lambda x: (x.t()[:3], (x + 1).t()))
    assert (counting.peak, counting.level) == (MATRIX, MATRIX)


def test_what_a_kernel_takes_inside_is_gone_behind_it():
    counting, _made = counted(lambda x: x * x.bool())
    assert (counting.peak, counting.level) == (MATRIX // 4 + 2 * MATRIX, MATRIX)
