"""Tests of tracer/handlers/numpy_computed.py: numpy computes with arrays from outside in front of the graph."""

import warnings

import numpy as np
import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def given(array=(1.0, 2.0, 3.0, 4.0), dtype=None):
    return lambda: (torch.randn(4), np.array(array, dtype=dtype))


BETAS = np.linspace(0.1, 0.9, 8)


class Schedule:
    def __init__(self):
        self.kept = np.cumprod(1 - BETAS)

    def noisy(self, x, t):
        return x * np.sqrt(self.kept[t]) + np.sqrt(1 - self.kept)[t]


@programs(lambda: (torch.randn(4), Schedule(), 3))
def schedule(x, s, t):
    s.sigmas = ((1 - s.kept) / s.kept) ** 0.5
    return s.noisy(x, t) * float(s.sigmas[t]), torch.from_numpy(s.sigmas).to(x.dtype), s.sigmas.max()


@programs(given())
def functions_and_methods(x, a):
    joined = torch.from_numpy(np.concatenate([a, np.array([0.5]), a * 2]))
    return x * a.sum() + a.mean(), joined, np.where(a > 2, a, 0.0), np.interp([0.5], a / a.max(), a), (a + 1).tolist()


@programs(given((1, 2, 3)))
def whole_numbers(x, a):
    return x[torch.from_numpy(a % 2)], x[int((-a).argmin())], a // 2, abs(-a), a / 2, a.shape, (a * 2).dtype, len(a + 1)


@programs(given())
def one_array_is_one_array(x, a):
    """The tensors over it, and what the program returns, are the same memory, which the graph writes to."""
    b = a * 2
    first, second = torch.from_numpy(b), torch.as_tensor(b)
    first.add_(1)
    return first, second, b, [b, b], b is a


@programs(given())
def what_is_written_to_later(x, a):
    b = a + 1
    t = torch.from_numpy(a)
    t.add_(1)
    return b, t, torch.from_numpy(b)


@programs(given(), graphs=2, breaks=1)
def what_was_written_to_before(x, a):
    torch.from_numpy(a).add_(1)
    return torch.from_numpy(a * 2) + 1


@programs(given(), breaks=1)
def a_result_that_is_given(x, a):
    np.add(a, 1, a)
    return x + 1, a


@programs(given(), breaks=2)
def a_part(x, a):
    b = a[1:3]
    b[0] = 9.0
    return x + 1, a, b


def test_other_numbers_are_no_reason_to_compile_again():
    def program(x, a, t):
        return x * float(np.sqrt(a)[t]) + torch.from_numpy(a * 2).sum().float() + a.max()

    compiled, x = minidynamo.compile(program, backend="eager", fullgraph=True), torch.ones(2)
    for t in range(5):
        a = np.random.default_rng(t).random(6) + 0.5
        assert torch.equal(compiled(x, a, t), program(x, a, t))
    assert compiled.stats.compiles == 2
    other = np.ones(3, dtype=np.float32)
    assert torch.equal(compiled(x, other, 1), program(x, other, 1)) and compiled.stats.compiles == 3
    with pytest.raises(IndexError):
        compiled(x, other, 7)


def test_what_numpy_says_when_it_divides_by_zero():
    def program(x, a):
        return torch.from_numpy(1 / a)

    compiled = minidynamo.compile(program, backend="eager")
    assert compiled(torch.ones(1), np.ones(2)).tolist() == [1, 1]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert compiled(torch.ones(1), np.zeros(2)).tolist() == [float("inf")] * 2
    assert {str(warning.message) for warning in said} == {"divide by zero encountered in divide"}
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(torch.ones(1), np.zeros(2))
