"""Tests of minidynamo/guards/state.py."""

import contextlib

import pytest
import torch

from minidynamo.guards.state import KernelSettings, current, default_device, differences


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype):  # type: ignore[no-untyped-def]
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _deterministic():  # type: ignore[no-untyped-def]
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CHANGES = {
    "grad_enabled is False, was True": torch.no_grad,
    "inference_mode is True, was False": torch.inference_mode,
    "autocast is (('cpu', True, torch.bfloat16),), was ()": lambda: torch.autocast("cpu", torch.bfloat16),
    "default_dtype is torch.float64, was torch.float32": lambda: _default_dtype(torch.float64),
    "default_device is meta, was cpu": lambda: torch.device("meta"),
    "deterministic is True, was False": _deterministic,
}


@pytest.mark.parametrize("words", CHANGES)
def test_each_setting_is_read_and_named_when_it_differs(words: str) -> None:
    before = current()
    assert before == current()
    assert differences(before) == ""
    with CHANGES[words]():
        assert current() != before
        assert words in differences(before)
    assert current() == before


def test_default_device_is_that_of_the_innermost_device_context() -> None:
    assert default_device() == torch.device("cpu")
    with torch.device("meta"):
        assert default_device() == torch.device("meta")
        with torch.device("cpu"):
            assert default_device() == torch.device("cpu")
        assert default_device() == torch.get_default_device()


def test_autocast_dtypes_are_told_apart() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        bfloat16 = current()
    with torch.autocast("cpu", torch.float16):
        assert current() != bfloat16


def test_kernel_settings_are_those_of_the_moment() -> None:
    settings = KernelSettings()
    assert settings.unchanged()
    assert settings.difference() == ""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert not settings.unchanged()
        assert settings.difference() == "num_threads"
        assert KernelSettings().unchanged()
    finally:
        torch.set_num_threads(threads)
    assert settings.unchanged()
    with torch.no_grad():
        assert not settings.unchanged()
