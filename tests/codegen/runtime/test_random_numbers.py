"""Random numbers drawn by machine code equal torch's, and so do later draws of torch."""

from __future__ import annotations

import threading

import pytest
import torch

import minidynamo
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
    assert random_numbers._machine_code_draw() is not None
    assert_same(drawn(random_numbers.bernoulli), drawn(torch.ops.aten.bernoulli.p))
    assert_same(drawn(random_numbers.fill_bernoulli), drawn(torch.ops.aten.bernoulli_.float))
    made = torch.empty(30, 40)
    assert random_numbers.fill_bernoulli(made.t(), 0.5)._version == made._version == 1


@pytest.mark.cpp
def test_what_differs_is_left_to_torch(monkeypatch):
    broken = random_numbers._draw
    skips_one = lambda entry, engine, g, out, p: broken(entry, engine, g, out.fill_(1)[1:], p)  # noqa: E731
    monkeypatch.setattr(random_numbers, "_draw", skips_one)
    random_numbers._machine_code_draw.cache_clear()
    try:
        assert random_numbers._machine_code_draw() is None
        assert_same(drawn(random_numbers.bernoulli), drawn(torch.ops.aten.bernoulli.p))
    finally:
        random_numbers._machine_code_draw.cache_clear()


@pytest.mark.cpp
def test_whoever_holds_another_lock_than_torch_does_not_draw(monkeypatch):
    own = torch.Generator().manual_seed(3)
    assert random_numbers._is_locked_by_torch(own)
    # 4 bytes before the words of the lock, and after the lock: no thread waits for a lock at either address.
    for offset in (random_numbers._LOCK_OFFSET - 4, random_numbers._LOCK_OFFSET + 2600):
        monkeypatch.setattr(random_numbers, "_LOCK_OFFSET", offset)
        random_numbers._machine_code_draw.cache_clear()
        try:
            assert random_numbers._machine_code_draw() is None
        finally:
            random_numbers._machine_code_draw.cache_clear()


SIZE, DRAWS = 20_000, 20


def in_threads(*functions):
    """Returns the results of each function in DRAWS calls, all draws at once."""
    together = threading.Barrier(len(functions))
    made = {function: [] for function in functions}

    def draw(function):
        together.wait()
        made[function] += [function() for _ in range(DRAWS)]

    threads = [threading.Thread(target=draw, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


@pytest.mark.cpp
def test_threads_that_draw_at_once_never_get_the_same_numbers():
    x = torch.ones(SIZE)
    dropout = minidynamo.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend="cpp")
    dropout(x)
    by_torch = [lambda: torch.empty(SIZE, dtype=torch.int64).random_(-(2**63), None) for _ in range(2)]
    by_kernels = [lambda: random_numbers.bernoulli(x, 0.5), lambda: dropout(x) / 2]
    eager = lambda: torch.nn.functional.dropout(x, 0.5) / 2  # noqa: E731
    torch.manual_seed(5)
    made = in_threads(*by_torch, *by_kernels, eager)
    state = torch.get_rng_state()

    torch.manual_seed(5)
    count = DRAWS * len(made)
    stream = torch.empty(count, SIZE, dtype=torch.int64).random_(-(2**63), None)
    assert torch.equal(torch.get_rng_state(), state)
    ones = ((stream & (2**53 - 1)) < 2**52).float()
    places = {hash(bytes(block.numpy())): k for blocks in (stream, ones) for k, block in enumerate(blocks)}
    drawn = {function: [places[hash(bytes(block.numpy()))] for block in blocks] for function, blocks in made.items()}
    assert all(each == sorted(each) for each in drawn.values())
    assert sorted(place for places in drawn.values() for place in places) == list(range(count))


def test_without_compiler_and_for_other_dtypes_torch_draws():
    random_numbers._machine_code_draw.cache_clear()
    with config.patch(cxx="/nowhere/c++"):
        assert_same(drawn(random_numbers.bernoulli), drawn(torch.ops.aten.bernoulli.p))
    random_numbers._machine_code_draw.cache_clear()
    assert random_numbers.bernoulli(torch.empty(300, dtype=torch.float64), 0.5).dtype == torch.float64
    with pytest.raises(RuntimeError, match="bernoulli_ expects p"):
        random_numbers.bernoulli(torch.empty(300), 1.5)
