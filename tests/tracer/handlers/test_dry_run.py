"""Changes of objects from outside the watched code are reported, changes of fresh objects are not."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture

total = 0


def appends(outside):
    outside.append(1)


def stores(outside):
    outside[0] = 2


def assigns_a_global(outside):
    global total
    total = 1


def changes_its_own(outside):
    mine = []
    mine.append({"a": 1})
    mine[0]["b"] = 2


@pytest.mark.parametrize("made", ["argument", "inside"])
@pytest.mark.parametrize(
    ("change", "seen"), [(appends, True), (stores, True), (assigns_a_global, True), (changes_its_own, False)]
)
def test_changes_outside_are_seen(change, seen, made):
    def program(x, given):
        outside = given if made == "argument" else [1]

        def part(t):
            change(outside)
            return t.sin()

        return checkpoint(part, x, use_reentrant=False)

    exit_of = capture(program, torch.randn(2), [1]).exit
    assert isinstance(exit_of, Break) is seen
