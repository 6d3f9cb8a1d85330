"""Programs that retry and fail: a call that cannot be captured costs later calls nothing."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounter


class Busy(Exception):
    pass


def retry(times: int, log: list[tuple[int, str]]):
    def decorate(fn):
        @functools.wraps(fn)
        def attempts(*args):
            last = None
            for attempt in range(times):
                try:
                    return fn(*args, attempt)
                except Busy as error:
                    last = error
                    log.append((attempt, str(error)))
            raise RuntimeError(f"gave up after {times}") from last

        return attempts

    return decorate


def test_giving_up_once_does_not_give_up_what_is_compiled() -> None:
    log: list[tuple[int, str]] = []

    @retry(3, log)
    def work(x: torch.Tensor, busy: int, attempt: int) -> torch.Tensor:
        if attempt < busy:
            raise Busy(f"attempt {attempt}")
        return x * 2 + attempt

    counter = CompileCounter()
    compiled = minidynamo.compile(work, backend=counter)
    x = torch.ones(2)
    assert [compiled(x, busy).tolist() for busy in (0, 1)] == [[2, 2], [3, 3]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="gave up after 3") as raised:
                compiled(x, 3)
            assert str(raised.value.__cause__) == "attempt 2"
    with minidynamo.testing.no_recompile():
        assert [compiled(x, busy).tolist() for busy in (0, 1)] == [[2, 2], [3, 3]]
    assert compiled.stats.hits == 4 and compiled.stats.native_runs == 0
    assert counter.frame_count == 2
    assert log == [(0, "attempt 0"), *[(n, f"attempt {n}") for _ in range(2) for n in range(3)], (0, "attempt 0")]
