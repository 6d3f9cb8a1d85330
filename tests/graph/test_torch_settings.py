"""Settings of torch are read without changes, and every change of a setting can be undone."""

from __future__ import annotations

import pytest
import torch

from minidynamo.graph.torch_settings import (
    SWITCHES,
    enter_inference_mode,
    is_switch,
    leave_autocast,
    restore,
    settings,
    switches_between,
)


def grad_mode():
    torch.set_grad_enabled(False)


def autocast():
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()


def autocast_on_another_device():
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)


def autocast_cache():
    torch.set_autocast_cache_enabled(False)


def default_dtype():
    torch.set_default_dtype(torch.float64)


def devices():
    torch.device("meta").__enter__()
    torch.device("cpu").__enter__()


def inference_mode():
    enter_inference_mode(True)
    enter_inference_mode(False)


CHANGES = (inference_mode, grad_mode, autocast, autocast_on_another_device, autocast_cache, default_dtype, devices)


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen_and_undone(change):
    before = settings()
    change()
    after = settings()
    assert after != before
    restore(before)
    assert settings() == before
    restore(after)
    assert settings() == after
    restore(before)


@pytest.mark.parametrize("change", CHANGES)
def test_the_way_consists_of_switches(change):
    before = settings()
    change()
    way = switches_between(before, settings())
    restore(before)
    assert way and all(is_switch(function) for function, _ in way)
    assert switches_between(before, before) == []


def test_what_else_is_no_switch():
    assert not is_switch(torch.add) and not is_switch(torch.no_grad)
    assert len(set(map(id, SWITCHES))) == len(SWITCHES)


def test_device_contexts_in_common_stay_open():
    with torch.device("meta"):
        before = settings()
        torch.device("cpu").__enter__()
        assert len(switches_between(before, settings())) == 1
        restore(before)
        assert torch.ones(1).is_meta
    assert not torch.ones(1).is_meta


def test_leaving_the_last_block_empties_the_cache():
    weight = torch.randn(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weight @ weight
        torch.autocast_increment_nesting()
        leave_autocast()
        leave_autocast()
        torch.autocast_increment_nesting()
    assert settings().autocast_nesting == 0
