"""Tests of minidynamo/graph/function_results.py: stand-ins for results of custom functions that share memory."""

from __future__ import annotations

import torch

from minidynamo.graph.function_results import recording_copies, unaliased_result


def test_a_view_of_an_argument_becomes_a_copy_that_is_noted():
    x = torch.ones(2, 3)
    with recording_copies() as copies:
        made = unaliased_result(x[0], (1, x))
    assert torch.equal(made, x[0]) and made.data_ptr() != x.data_ptr()
    assert [copied.copy is made for copied in copies] == [True]
    assert copies[0].result.data_ptr() == x.data_ptr()


def test_other_results_stay_as_they_are():
    x, other = torch.ones(2), torch.ones(2)
    with recording_copies() as copies:
        assert (
            unaliased_result(x, (x,)) is x and unaliased_result(other, (x,)) is other and unaliased_result(3, (x,)) == 3
        )
    assert copies == []


def test_it_is_known_whether_one_of_the_two_was_written_to():
    x = torch.ones(2, 3)
    with recording_copies() as copies:
        x.add_(1)
        unaliased_result(x[0], (x,))
    assert not copies[0].is_written
    x.add_(1)
    assert copies[0].is_written


def test_nobody_need_note_it():
    x = torch.ones(2)
    assert unaliased_result(x.view(2), (x,)) is not x
