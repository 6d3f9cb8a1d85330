"""Random numbers that are drawn by machine code are those of torch, and so is what comes behind them."""

from __future__ import annotations

import pytest
import torch

from minidynamo.codegen.runtime import random_numbers
from minidynamo.config import config

SIZES = ((), (1,), (255,), (256,), (311,), (3, 104), (5000,), (40, 50, 3))


def drawn(function):
    torch.manual_seed(3)
    made = [function(torch.empty(size), p) for size in SIZES for p in (0.0, 0.1, 0.5, 0.9, 1.0)]
    return [*made, torch.rand(3), torch.randn(3)], torch.get_rng_state()


def assert_same(a, b):
    for x, y in zip(a[0], b[0], strict=True):
        assert torch.equal(x, y) and x.stride() == y.stride()
    assert torch.equal(a[1], b[1])


@pytest.mark.cpp
def test_as_torch_draws():
    assert random_numbers._drawn_by_machine_code() is not None
    assert_same(drawn(random_numbers.bernoulli), drawn(torch.ops.aten.bernoulli.p))


@pytest.mark.cpp
def test_what_differs_is_left_to_torch(monkeypatch):
    broken = random_numbers._draw
    monkeypatch.setattr(random_numbers, "_draw", lambda entry, g, out, p: broken(entry, g, out.fill_(1)[1:], p))
    random_numbers._drawn_by_machine_code.cache_clear()
    try:
        assert random_numbers._drawn_by_machine_code() is None
        assert_same(drawn(random_numbers.bernoulli), drawn(torch.ops.aten.bernoulli.p))
    finally:
        random_numbers._drawn_by_machine_code.cache_clear()


def test_without_compiler_and_for_other_dtypes_torch_draws():
    random_numbers._drawn_by_machine_code.cache_clear()
    with config.patch(cxx="/nowhere/c++"):
        assert_same(drawn(random_numbers.bernoulli), drawn(torch.ops.aten.bernoulli.p))
    random_numbers._drawn_by_machine_code.cache_clear()
    assert random_numbers.bernoulli(torch.empty(300, dtype=torch.float64), 0.5).dtype == torch.float64
    with pytest.raises(RuntimeError, match="bernoulli_ expects p"):
        random_numbers.bernoulli(torch.empty(300), 1.5)
