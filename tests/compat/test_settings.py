"""Tests of minidynamo/compat/settings.py."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from minidynamo import compat


def test_devices_that_are_open_are_found_below_other_modes():
    with torch.device("meta"):
        compat.enter_device(torch.device("cpu"))
        assert compat.open_devices()[-1] == torch.device("cpu")
        assert torch.empty(2).device.type == "cpu"
        compat.leave_device()
        assert torch.empty(2).device.type == "meta"


def test_questions_that_programs_ask_are_answered():
    assert all(callable(question) for question in compat.GUARDED_QUESTIONS)
    assert torch._C._get_cudnn_enabled in compat.GUARDED_QUESTIONS
    for is_taken, switch in compat.ATTENTION.values():
        before = is_taken()
        switch(not before)
        assert is_taken() is not before
        switch(before)


def test_nothing_is_cast_inside_of_the_context():
    with torch.autocast("cpu", dtype=torch.bfloat16), compat.without_autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("lost", [False, True])
def test_an_error_finds_the_modes_of_before(lost):
    """Torch may be interrupted while it enters a mode, or while a mode is suspended."""
    outer = FakeTensorMode()
    with outer, torch.device("meta"):
        with pytest.raises(KeyboardInterrupt), compat.keeping_thread_state():
            if lost:
                torch._C._pop_torch_function_stack()
                torch._C._pop_torch_dispatch_stack(None)
            else:
                FakeTensorMode().__enter__()
                compat.enter_device(torch.device("cpu"))
            raise KeyboardInterrupt
        assert (compat.torch_dispatch_mode_count(), compat.torch_dispatch_mode_at(0)) == (1, outer)
        assert compat.open_devices() == (torch.device("meta"),)
    assert type(torch.ones(2)) is torch.Tensor
