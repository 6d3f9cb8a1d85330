"""Tests of minidynamo/graph/function_results.py: what stands for results of the user's functions that share memory."""

from __future__ import annotations

import torch

from minidynamo.graph.function_results import noting_copies, of_its_own


def test_a_view_of_an_argument_becomes_a_copy_that_is_noted():
    x = torch.ones(2, 3)
    with noting_copies() as copies:
        made = of_its_own(x[0], (1, x))
    assert torch.equal(made, x[0]) and made.data_ptr() != x.data_ptr()
    assert [copied.copy is made for copied in copies] == [True]
    assert copies[0].result.data_ptr() == x.data_ptr()


def test_other_results_stay_as_they_are():
    x, other = torch.ones(2), torch.ones(2)
    with noting_copies() as copies:
        assert of_its_own(x, (x,)) is x and of_its_own(other, (x,)) is other and of_its_own(3, (x,)) == 3
    assert copies == []


def test_it_is_known_whether_one_of_the_two_was_written_to():
    x = torch.ones(2, 3)
    with noting_copies() as copies:
        x.add_(1)
        of_its_own(x[0], (x,))
    assert not copies[0].is_written
    x.add_(1)
    assert copies[0].is_written


def test_nobody_need_note_it():
    x = torch.ones(2)
    assert of_its_own(x.view(2), (x,)) is not x
