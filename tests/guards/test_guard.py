"""Tests of minidynamo/guards/guard.py."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Item, Local
from minidynamo.guards.tensors import facts_of


def test_every_kind_has_a_readable_value() -> None:
    assert all(kind.value and kind.value == kind.value.lower() for kind in GuardKind)
    assert len({kind.value for kind in GuardKind}) == len(GuardKind)


def test_guards_are_equal_by_content_and_hash_without_hashing_what_they_expect() -> None:
    first = Guard(Item(Local("x"), 0), GuardKind.EQUALS, [1, 2])
    assert first == Guard(Item(Local("x"), 0), GuardKind.EQUALS, [1, 2])
    assert hash(first) == hash(Guard(Item(Local("x"), 0), GuardKind.EQUALS, [3]))
    assert first != Guard(Item(Local("x"), 0), GuardKind.EQUALS, [3])


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Guard(Local("x"), GuardKind.TYPE, int).kind = GuardKind.EQUALS  # type: ignore[misc]


def test_summary_names_dtype_shape_and_device() -> None:
    assert facts_of(torch.zeros(2, 3)).summary == "float32[2, 3] on cpu"
    assert facts_of(torch.zeros((), dtype=torch.int64, device="meta")).summary == "int64[] on meta"


def test_every_kind_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guards.md").read_text(encoding="utf-8")
    headings = "".join(re.findall(r"^### (.*)$", page, flags=re.MULTILINE))
    assert [kind.value for kind in GuardKind if kind.value not in headings] == []
