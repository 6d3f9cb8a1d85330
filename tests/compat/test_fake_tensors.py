"""Tests of minidynamo/compat/fake_tensors.py."""

from __future__ import annotations

import threading

import torch

from minidynamo import compat


def test_fake_tensors_of_constants_know_their_values():
    with compat.FakeTensorMode() as mode:
        constant, like_an_input = torch.tensor(3), mode.from_tensor(torch.ones(2))
        known = compat.known_constant(constant)
    assert known is not None and known.item() == 3
    assert isinstance(like_an_input, compat.FakeTensor) and compat.known_constant(like_an_input) is None
    assert compat.known_constant(torch.ones(2)) is None


def test_what_is_slow_to_import_is_imported_elsewhere():
    before = threading.active_count()
    compat.load_fake_tensors()
    compat.load_symbols()
    assert threading.active_count() == before
