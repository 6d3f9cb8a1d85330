"""Immutable objects that are made once more."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pytest
import torch

from minidynamo.tracer.copies import anew, can_be_two, is_interned, is_made_anew

VALUES = [
    *(1000, -(10**40), 2.5, -0.0, math.inf, math.nan, complex(0.0, -0.0), "a b", "é" * 3, b"bytes"),
    *(range(3, 9, 2), slice(1, None), torch.device("cpu"), torch.device("cuda", 1), torch.finfo(torch.float16)),
    *(torch.iinfo(torch.int8), np.float32(0.1), np.int64(7), list[int]),
    *(datetime.date(2000, 1, 2), datetime.datetime(2000, 1, 2, fold=1), datetime.timedelta(1, 2, 3)),
    datetime.timedelta.max,  # which has no opposite
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_another_object_of_the_same_value(value):
    copy = anew(value)
    assert copy is not value and type(copy) is type(value) and repr(copy) == repr(value)
    assert can_be_two(value) and (is_made_anew(value) or is_interned(str(value)))


@pytest.mark.parametrize("value", [7, "", b"", True, None, torch.float32, ...], ids=repr)
def test_what_there_is_only_one_of(value):
    assert not can_be_two(value) and not is_made_anew(value)


def test_what_operations_give_that_python_keeps():
    a, name = "".join(["a", " b"]), "name"
    assert not any(map(is_made_anew, (a[0], a.encode()[:1], str(len(a) > 1), name)))
    assert all(map(is_made_anew, (a, a + a, a.encode(), str(10**5), len(a) * 1000)))


def test_interned_texts():
    text = "".join(["some", "name"])
    assert is_interned("name") and not is_interned(text)
