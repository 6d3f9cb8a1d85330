"""Results whose dtype is a default that the program changes."""

from __future__ import annotations

import pytest
import torch

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


class Integers:
    def divided(i, x):
        return i / 3

    def divided_inside(i, x):
        return (i / 3).sum() * x

    def times_a_number(i, x):
        return (i * 2.5).exp(), i.clamp(0.5), i * 2

    def selected(i, x):
        return torch.where(i > 1, 1.0, 2.0), (i > 1) / i

    def reduced(i, x):
        return torch.logsumexp(i, 0)

    def converted(i, x):
        return i.float() / 3, torch.full_like(i, 1.5, dtype=torch.float32), i.to(torch.float16) * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Integers))
@pytest.mark.filterwarnings("error")
def test_integers_become_the_changed_default_dtype(fn, backend):
    def program(i, x):
        torch.set_default_dtype(torch.float64)
        results = fn(i, x)
        torch.set_default_dtype(torch.float32)
        return results, i / 3

    made = [lambda size=size: (torch.arange(1, size), torch.ones(size - 1, requires_grad=True)) for size in (4, 5, 6)]
    assert_same_as_eager(program, *made, backend=backend, graphs=2, breaks=0, calls=2)
