"""Numpy's scalars, and numpy functions of numbers."""

import numpy as np
import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def with_number(number):
    return lambda: (torch.randn(4), number)


@programs()
class Cases:
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
