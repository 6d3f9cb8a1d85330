"""Copies of immutable objects."""

from __future__ import annotations

import datetime
import math
import re

import numpy as np
import pytest
import torch

from minidynamo.tracer.records.copies import fresh_copy, is_interned, is_new_object, may_be_distinct

VALUES = [
    *(1000, -(10**40), 2.5, -0.0, math.inf, math.nan, complex(0.0, -0.0), "a b", "é" * 3, b"bytes"),
    *(range(3, 9, 2), slice(1, None), torch.device("cpu"), torch.device("cuda", 1), torch.finfo(torch.float16)),
    *(torch.iinfo(torch.int8), np.float32(0.1), np.int64(7), list[int]),
    *(datetime.date(2000, 1, 2), datetime.datetime(2000, 1, 2, fold=1), datetime.timedelta(1, 2, 3)),
    *(datetime.timezone(datetime.timedelta(hours=1)), datetime.timezone(datetime.timedelta(0), "name")),
    *(datetime.time(1, 2, fold=1), datetime.time(3, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))),
    datetime.timedelta.max,  # has no negation
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_another_object_of_the_same_value(value):
    copy = fresh_copy(value)
    assert copy is not value and type(copy) is type(value) and repr(copy) == repr(value)
    assert may_be_distinct(value) and (is_new_object(value) or is_interned(str(value)))


MATCHES = [
    *(re.match("(a)|b", "b"), re.search("b+", "abb"), re.fullmatch("a|ab", "ab"), re.compile("c").search("acc", 1, 2)),
    *(re.search(b"(?P<name>b)", b"ab"), [*re.finditer(r"\w*", "ab cd")][-2], re.compile("(?=b)").match("ab", 1)),
]


@pytest.mark.parametrize("match", MATCHES, ids=repr)
def test_another_match(match):
    copy = fresh_copy(match)
    assert copy is not match and is_new_object(match)
    for name in ("re", "string", "pos", "endpos", "regs", "lastindex", "lastgroup"):
        assert getattr(copy, name) == getattr(match, name), name


@pytest.mark.parametrize("value", [7, "", b"", True, None, torch.float32, ...], ids=repr)
def test_what_there_is_only_one_of(value):
    assert not may_be_distinct(value) and not is_new_object(value)


def test_the_zone_that_there_is_once():
    assert not is_new_object(datetime.UTC)


def test_what_operations_give_that_python_keeps():
    a, name = "".join(["a", " b"]), "name"
    assert not any(map(is_new_object, (a[0], a.encode()[:1], str(len(a) > 1), name)))
    assert all(map(is_new_object, (a, a + a, a.encode(), str(10**5), len(a) * 1000)))


def test_interned_texts():
    text = "".join(["some", "name"])
    assert is_interned("name") and not is_interned(text)
