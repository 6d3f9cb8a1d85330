"""Numpy arrays of constants: calls that run while tracing, results of a frame, and calls left to Python."""

import numpy as np
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs

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
