"""Numpy arrays of constants: calls that run while tracing, results of a frame, and calls left to Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    def tensors_of_numbers(x):
        given = torch.tensor([np.int32(3), 4]), torch.tensor(np.float32(0.1)), torch.tensor([[np.int8(1)], [2.5]])
        made = torch.as_tensor([np.float64(2), np.float32(3)]), torch.as_tensor((np.bool_(True),), dtype=torch.float16)
        return [
            *given,
            *made,
            torch.tensor([np.float32(2)], dtype=None),
            x + torch.tensor(np.int64(3), dtype=torch.int8),
        ]

    def schedules(x):
        for rate in np.linspace(0, 0.5, 3):
            x = x * (1 - float(rate)) + rate
        return x

    def numbers_from_arrays(x):
        steps = np.array([0.0, 1, 2]) * 2 + 1
        first, *rest = steps
        made = x * float(steps[1]), x + steps.sum(), len(rest)
        return *made, steps.shape, first, steps.tolist(), bool(steps.max() > 3)

    def windows(x):
        window = np.hanning(4)
        table = torch.tensor(np.array([[1, 2], [3, 4]], dtype=np.int32))
        return x * torch.from_numpy(window).to(x.dtype), table, torch.as_tensor(np.ones(4), dtype=torch.float32)

    def returned_arrays(x):
        a = np.arange(3.0)
        return x + 1, a, [a, a * 2]

    @programs(graphs=2, breaks=1)
    def written_arrays(x):
        a = np.zeros(3)
        y = x + 1
        a[0] = 5
        return y * 2, a

    @programs(graphs=2, breaks=2)
    def second_arrays_over_the_same_memory(x):
        a = np.arange(4.0)
        y = x + 1
        b = a[1:]
        b[0] = 7
        return y * 2, a, b

    @programs(graphs=2, breaks=1)
    def arrays_below_tensors(x):
        a = np.ones(4)
        t = torch.from_numpy(a)
        t += 1
        y = x + t
        return y, a.sum() + y

    def arrays_below_returned_tensors(x):
        a = np.ones(4)
        t = torch.from_numpy(a)
        t += x
        return t, a

    def errors_are_numpys(x):
        try:
            np.array([1.0, 2.0])[5]
        except IndexError as error:
            return x + 1, str(error)

    @programs(graphs=2, breaks=1)
    def results_that_are_written_into_an_array(x):
        a = np.zeros(2)
        y = x + 1
        np.add(np.ones(2), 1, out=a)
        return y * 2, a

    @programs(breaks=1)
    def two_tensors_over_one_array(x):
        a = np.ones(4)
        t = torch.from_numpy(a)
        y = x + t
        return y, torch.as_tensor(a) is t


def test_each_call_returns_arrays_of_its_own():
    def f(x):
        a = np.arange(3)
        return x + 1, a, torch.from_numpy(a)

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    first, second = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert first[1] is not second[1]
    first[1][0] = 9
    assert second[1].tolist() == [0, 1, 2]
    assert first[2].tolist() == [9, 1, 2]


def test_arrays_from_outside_are_read_when_the_program_runs():
    outside = np.ones(4, dtype=np.float32)

    def f(x):
        return x + torch.from_numpy(outside) * np.arange(4).sum()

    assert_same_as_eager(f, lambda: torch.ones(4), calls=2)
    outside[:] = 2
    assert_same_as_eager(f, lambda: torch.ones(4), calls=2)


def with_number(number):
    return lambda: (torch.randn(4), number)


@programs()
class Scalars:
    def sizes(x):
        n = int(np.prod(x.shape)) * 2
        return x.repeat(2).view(n), np.prod([2, 3]), x[: np.int64(2)], x * np.max([1.5, 2])

    def ufuncs(x):
        scale = 1 / np.sqrt(x.shape[-1])
        return x * scale + np.pi, np.log2(8.0), float(np.exp(1.0)), np.floor(2.5), scale, np.add(1, 2)

    def kinds_of_numbers(x):
        made = x + 1, np.float32(2) * 3, np.int8(4) // 3
        return *made, np.float64(1) + 1, -np.int8(3), np.float16(2) > 1, np.dtype("f4")

    def what_a_number_says_of_itself(x):
        n = np.float32(2.5)
        made = x + 1, n.item(), n.dtype, n.shape, n.is_integer()
        return *made, int(n), round(n), str(n), f"{n:.1f}", bool(n), np.finfo(n).eps

    @programs(with_number(np.float32(2.5)), with_number(np.float64(2.5)), with_number(np.int64(2)), graphs=3)
    def next_to_tensors(x, n):
        return x * n, n * x, x - n, n - x, x**n, x < n, n < x, torch.full((2,), n), x.clamp(max=n), torch.add(x, n)

    @programs(with_number(np.int64(1)), with_number(np.int64(2)), graphs=2)
    def as_an_index(x, n):
        return x[n], x[:n], list(range(n)), {1: "one", 2: "two"}[n], "abc"[n], x.sum(n - n)

    @programs(with_number(np.float32(2)), with_number(2.0), with_number(np.float64(2)), graphs=3)
    def a_number_of_another_class(x, n):
        return x + 1, n, type(n).__name__

    @programs(lambda: torch.randn(4, 3))
    def ints_in_sizes_and_dimensions(x):
        around, back = tuple(np.subtract(x.shape, [3, 1])), [np.int64(1), np.int32(0)]
        made = torch.zeros((np.int64(2), 1)), x.new_ones(list(np.array([2, 3])))
        found = torch.nn.functional.pad(x, around), x.permute(back)
        return *found, x.sum((np.int64(0),)), x.reshape(*back[:1], -1), made


def test_signs_of_zeros_and_nans_are_told_apart():
    counts = []

    @minidynamo.compile(backend="eager")
    def fn(x, n):
        counts.append(0)
        return x + 1, n

    def call(n):
        return fn(torch.ones(1), n)[1]

    assert str(call(np.float32(0.0))) == "0.0"
    assert str(call(np.float32(-0.0))) == "-0.0"
    assert np.isnan(call(np.float32("nan"))) and np.isnan(call(np.float32("nan")))


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: [1, 2, 3][np.int64(1)],
        lambda x, n: (1, 2, 3)[: np.int64(2)],
        lambda x, n: [0] * np.int64(2),
        lambda x, n: torch.tensor(n),
        lambda x, n: torch.tensor([n, n]),
        lambda x, n: x.new_tensor(n),
        lambda x, n: x * np.sqrt(x),
        lambda x, n: np.linspace(0, n, 3),
        lambda x, n: x * np.complex64(1 + 2j),
        lambda x, n: x[np.bool_(True)],
        lambda x, n: torch.tensor([np.int32(3), np.int32(4)]),
        lambda x, n: np.sqrt("a"),
        lambda x, n: np.prod(x.shape, axis=5),
    ],
)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning", "ignore::DeprecationWarning")
def test_what_is_not_captured_is_the_same_as_eager(use):
    assert_same_as_eager(lambda x, n: (x + 1, use(x, n)), lambda: (vector(), np.float64(2.5)))
