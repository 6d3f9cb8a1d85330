"""Tests of minidynamo/memory/saved.py."""

from __future__ import annotations

import torch

from minidynamo.memory.saved import SavedTensors, SavedValue


def test_the_table_has_the_largest_first_and_sums_up():
    small = SavedValue("x", (2,), torch.float32, 8, "input", None, "an input")
    large = SavedValue("exp", (4,), torch.float32, 16, "aten.exp.default", None, "too dear")
    saved = SavedTensors([small, large])
    assert saved.bytes == 24
    assert str(saved).splitlines() == [
        "tensor              bytes  made by           line  why",
        "exp     float32[4]     16  aten.exp.default        too dear",
        "x       float32[2]      8  input                   an input",
        "2 tensors, 24 bytes, 16 bytes without inputs",
    ]
    assert str(SavedTensors()) == "no saved tensors"
