"""Unbacked symbols: no branch depends on their values."""

from __future__ import annotations

import pytest

from minidynamo.compat import symbolic
from minidynamo.graph.unbacked_symints import depends_on_data, hint_of, unbacked_symbol


@pytest.fixture
def env():
    return symbolic().ShapeEnv()


def size(env, value):
    source = symbolic().NamedSource("size")
    symbol = env.create_symbol(value, source, dynamic_dim=symbolic().DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=value)


def test_only_its_range_is_known(env):
    number = unbacked_symbol(env, 5)
    assert bool(number >= 0) and bool(number < 5)
    with pytest.raises(RuntimeError, match="data-dependent"):
        bool(number > 2)
    with pytest.raises(RuntimeError, match="data-dependent"):
        bool(unbacked_symbol(env, None) < 5)
    assert not env.guards


def test_it_is_below_a_size_that_varies(env):
    rows = size(env, 5)
    number = unbacked_symbol(env, rows)
    assert bool(number < rows)
    assert not env.guards


def test_what_hangs_on_it(env):
    rows, number = size(env, 5), unbacked_symbol(env, 4)
    assert [depends_on_data(value) for value in (number, number * 3 + rows, rows, 3, "3")] == [True, True, *[False] * 3]


def test_hints_take_it_for_zero(env):
    rows, number = size(env, 5), unbacked_symbol(env, 4)
    assert [hint_of(value) for value in (rows, rows * 2, number, number * 8 + rows, number + 6)] == [5, 10, 0, 5, 6]
