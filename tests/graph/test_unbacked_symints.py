"""Tests of minidynamo/graph/unbacked_symints.py: no branch depends on unbacked symbols; subscripts by tensors of one
integer."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from minidynamo.compat import FakeTensorMode, symbolic
from minidynamo.graph.unbacked_symints import (
    checked_index,
    depends_on_data,
    has_index_tensors,
    hint_of,
    run_with_indices,
    unbacked_symbol,
    with_first_indices,
)


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


ROWS = torch.tensor([2, 0, 2])
MASK = torch.ones(3, 4, dtype=torch.bool)


def index(number: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(number, dtype=dtype)


def block() -> torch.Tensor:
    return torch.arange(60.0).reshape(3, 4, 5)


KEYS: dict[str, Any] = {
    "alone": index(1),
    "in a tuple": (index(-1),),
    "small integers": (index(1, torch.int8), index(-1, torch.int32)),
    "behind a slice": (slice(1, None), index(2)),
    "behind all": (..., index(-2)),
    "around all": (index(0), ..., index(3)),
    "beside a number": (0, index(1)),
    "beside new dimensions": (None, index(2), None, slice(None, None, 2)),
    "beside rows": (index(1), ROWS),
    "behind rows": (ROWS, index(1)),
    "between rows": (ROWS, index(1), ROWS),
    "behind a mask": (MASK, index(2)),
    "everywhere": (index(1), index(1), index(1)),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_subscript_with_places_is_the_subscript_itself(name):
    x, key = block(), KEYS[name]
    expected = x[key]
    made = run_with_indices(operator.getitem, [x, key], checked_index)
    assert torch.equal(made, expected) and made.stride() == expected.stride()
    assert (made._base is x, made.storage_offset()) == (expected._base is x, expected.storage_offset())
    x, same = block(), block()
    run_with_indices(operator.setitem, [x, key, 7], checked_index)
    same[key] = 7
    assert torch.equal(x, same)


@pytest.mark.parametrize("name", sorted(KEYS.keys() - {"behind a mask"}))
def test_without_data_it_is_the_first_place(name):
    key = KEYS[name] if isinstance(KEYS[name], tuple) else (KEYS[name],)
    expected = block()[key]
    mode = FakeTensorMode()
    x, *items = (mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in (block(), *key))
    with mode:
        _, replaced = with_first_indices(operator.getitem, [x, tuple(items)])
        made = x[replaced]
    assert (made.shape, made.stride()) == (expected.shape, expected.stride())


@pytest.mark.parametrize(
    "key",
    [
        (index(1), [0, 1]),  # a list may hold positions or a mask
        torch.tensor(True),
        index(1, torch.uint8),
        (index(1), torch.tensor(True)),
        (slice(index(1), None), index(1)),
        (index(1), index(1), index(1), index(1)),
        (..., index(1), ...),
        ROWS,
        1,
    ],
)
def test_what_is_left_to_torch(key):
    args = [block(), key]
    assert with_first_indices(operator.getitem, args) is args
    assert run_with_indices(operator.getitem, args, checked_index) is NotImplemented


def test_other_calls_are_left_alone():
    for target, args in ((operator.add, [block(), index(1)]), (operator.getitem, [[1, 2], index(1)])):
        assert with_first_indices(target, args) is args


def test_a_place_counts_from_the_start_and_is_checked_in_torchs_words():
    assert [checked_index(index(number), 3, 0) for number in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for key in (index(3), index(-4), (None, slice(None), index(4)), (..., 1, index(5))):
        with pytest.raises(IndexError) as expected:
            block()[key]
        with pytest.raises(IndexError) as error:
            run_with_indices(operator.getitem, [block(), key], checked_index)
        assert str(error.value) == str(expected.value)


def test_nodes_that_read_places():
    graph = torch.fx.Graph()
    x, i = graph.placeholder("x"), graph.placeholder("i")
    x.meta["example_value"], i.meta["example_value"] = block(), index(1)
    assert has_index_tensors(graph.call_function(operator.getitem, (x, i)))
    assert has_index_tensors(graph.call_function(operator.getitem, (x, (slice(None), i))))
    assert not has_index_tensors(graph.call_function(operator.getitem, (x, 1)))
    assert not has_index_tensors(graph.call_function(operator.add, (x, i)))
