"""Facts that distinguish versions, and nothing else."""

from __future__ import annotations

from typing import Any

import torch

from minidynamo.guards.cache import Entry, make_entry
from minidynamo.guards.frozen import distinguishing
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Local
from minidynamo.guards.tensors import facts_of

X, N = Local("x"), Local("n")


def entry(*guards: Guard) -> Entry:
    return make_entry(guards, ["x", "n"], lambda boxed: None)


def expected(entries: list[Entry]) -> list[list[Any]]:
    return [[guard.expected for guard in guards] for guards in distinguishing(entries)]


def tensor(dtype: torch.dtype) -> Guard:
    return Guard(X, GuardKind.TENSOR, facts_of(torch.ones(2, dtype=dtype)))


def number(value: float) -> Guard:
    return Guard(N, GuardKind.EQUALS, value)


def test_one_version_needs_nothing():
    assert expected([entry(tensor(torch.float32), number(2))]) == [[]]


def test_what_all_versions_expect_is_left_out():
    versions = [entry(tensor(torch.float32), number(n)) for n in (1, 2, 3)]
    assert expected(versions) == [[1], [2], [3]]
    two = [entry(tensor(dtype), number(1)) for dtype in (torch.float32, torch.float64)]
    assert [[facts.dtype for facts in found] for found in expected(two)] == [[torch.float32], [torch.float64]]


def test_zeros_differ_and_nan_is_nan():
    assert expected([entry(number(0.0)), entry(number(-0.0))]) == [[0.0], [-0.0]]
    assert expected([entry(number(float("nan"))), entry(number(float("nan")))]) == [[], []]


def test_what_only_the_users_code_could_compare_counts_as_different():
    class Equal:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("user code ran")

        __hash__ = object.__hash__

    one, other = Equal(), Equal()
    versions = [entry(Guard(N, GuardKind.IDENTITY, value)) for value in (one, other)]
    assert [len(guards) for guards in distinguishing(versions)] == [1, 1]
