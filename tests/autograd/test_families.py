"""Tests of minidynamo/autograd/families.py: what the outputs of a program are."""

from __future__ import annotations

import pytest
import torch

from minidynamo.autograd.families import classify
from minidynamo.errors import GraphRefused


def kinds(outputs, *inputs):
    entries, families = classify(outputs, dict(enumerate(inputs)))
    return [(entry.kind, entry.index) for entry in entries], families


def test_inputs_views_of_them_and_constants():
    x, y = torch.randn(2, 2), torch.randn(2)
    made, families = kinds([3, y, x.t(), x, None], x, y)
    assert made == [("constant", 0), ("input", 1), ("view", 0), ("input", 0), ("constant", 0)] and not families


def test_outputs_that_share_memory_are_one_family():
    x = torch.randn(4, requires_grad=True)
    one, other = x.sin(), x.cos().detach()
    made, families = kinds([one[:2], other, one, one[2:]], x)
    assert made == [("member", 0), ("member", 1), ("member", 0), ("member", 0)]
    assert [family.root is root for family, root in zip(families, (one, other), strict=True)] == [True, True]
    assert [family.requires_grad for family in families] == [True, False]


def test_what_is_said_of_a_view():
    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        silent = x[:2]
    (entry,), _ = classify([silent], {0: x})
    assert (entry.kind, entry.requires_grad, entry.is_view, entry.no_grad) == ("view", True, True, True)
    (entry,), _ = classify([x[:2]], {0: x})
    assert (entry.kind, entry.requires_grad, entry.is_view, entry.no_grad) == ("view", True, True, False)


def test_histories_of_their_own_are_refused():
    x = torch.randn(4)
    with pytest.raises(GraphRefused, match="MD404"):
        classify([x.view(2, 2).requires_grad_()], {0: x})
