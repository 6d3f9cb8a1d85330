"""An error in the middle of a compiled graph leaves what it leaves in eager, and is caught where it is in eager."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def caught(x, i, log):
    y = x + 1
    try:
        z = torch.index_select(y, 0, i)
    except (IndexError, RuntimeError):
        z = y * 0
    return z + 1


def effects_before(x, i, log):
    log.append("before")
    z = torch.index_select(x + 1, 0, i)
    log.append("behind")
    return z


def written_before(x, i, log):
    x.add_(1)
    return torch.index_select(x, 0, i)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", (caught, effects_before, written_before))
def test_error_of_an_operation(fn, backend):
    def good():
        return torch.arange(3.0), torch.tensor([1]), []

    def bad():
        return torch.arange(3.0), torch.tensor([7]), []

    assert_same_as_eager(fn, good, bad, good, backend=backend)


def test_a_second_error_says_that_nothing_was_replayed():
    seen = []

    @minidynamo.compile(backend="eager")
    def f(x, i):
        seen.append(1)
        x.add_(1)
        return torch.index_select(x, 0, i)

    x = torch.arange(3.0)
    f(x, torch.tensor([0]))
    with pytest.raises(IndexError) as error:
        f(x, torch.tensor([9]))
    assert "a tensor was written to before" in "\n".join(error.value.__notes__)
