"""Equal immutable values that are, or are not, a single object."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
import torch

from minidynamo.tracer.records.immutable_classes import may_be_distinct


@pytest.mark.parametrize(
    "value", [1000, 2.5, 2j, "a b", b"bytes", range(3), torch.device("cpu"), np.int64(7), list[int], datetime.UTC]
)
def test_values_of_several_objects(value):
    assert may_be_distinct(value)


@pytest.mark.parametrize("value", [7, "", b"", True, None, torch.float32, ...], ids=repr)
def test_what_there_is_only_one_of(value):
    assert not may_be_distinct(value)
