"""External numpy arrays: their facts, and tensors created from arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.histories import Histories, attempt, compare
from tests.end_to_end.programs import Programs

programs = Programs()
histories = Histories()
# one program writes to two tensors in the same memory
test_same_as_eager = pytest.mark.filterwarnings("ignore:.*MD402")(programs.test("eager", "aot_eager"))


def array():
    return np.arange(6.0, dtype=np.float32).reshape(2, 3)


def numbers_as_tensors(x):
    numbers = torch.asarray(np.int64(3)), torch.asarray(np.float64(1.5), dtype=torch.float16)
    return x + numbers[0], numbers, torch.asarray([np.int32(1), np.int32(2)]), torch.asarray(np.bool_(True))


programs(lambda: torch.ones(2))(numbers_as_tensors)


def places(kind=np.int64):
    return np.array([2, 0, 0], dtype=kind)


def store(x, number):
    x[0] = number
    return x * 2


@programs(*[lambda n=n: (torch.ones(2), n) for n in (2, 3, 4, 5)], graphs=2, recompiles=1, breaks=None)
class TensorsFromNumpyNumbers:
    def a_tensor_of_what_becomes_a_number_of_numpys(x, n):
        return x * torch.tensor(np.int64(n)), torch.tensor(np.float32(n))

    @programs(lambda: (torch.ones(2), np.float32(0.5)), graphs=None, breaks=None)
    def a_number_that_the_dtype_does_not_take(x, n):
        return x * torch.tensor(n, dtype=torch.int8)


@programs(array)
class Cases:
    @programs(lambda: (array(), torch.randn(3)))
    def tensors_of_an_array(a, x):
        return torch.from_numpy(a) * x, torch.as_tensor(a) + 1, torch.tensor(a), torch.as_tensor(a, dtype=torch.float64)

    def arrays_as_tensors(a):
        first, second = torch.asarray(a), torch.asarray(a, dtype=torch.float32)
        first.mul_(2)
        copied = torch.asarray(a, copy=True).add_(1)
        made = first is second, second + 1, copied, torch.asarray(first) is first
        return *made, torch.asarray(a, dtype=torch.int32), a

    def facts_of_an_array(a):
        return torch.ones(a.shape) * a.ndim + a.size, str(a.dtype), a.shape[0] * a.itemsize, len(a), bool(len(a))

    @programs(lambda: np.array(3.0))
    def the_length_of_an_array_without_dimensions(a):
        try:
            return torch.ones(len(a))
        except TypeError as error:
            return torch.ones(1), str(error)

    @programs(lambda: (np.array([0.5, 2.0, np.nan]), np.array([[1, 2], [3, 4]]), torch.randn(4)))
    def single_numbers(a, places, x):
        kinds = type(a[0]), type(a.tolist()[0]), a[0] is a[0], type(places[-1, np.int64(1)])
        x = x * a[0] + x[places[0, 1]] * places[1, 0] if a[1] > 1 else x
        return kinds, x, [x * value for value in a], a[1], sum(places[0, 0] for _ in a), np.isnan(a[2])

    @programs(lambda: (np.array(2.0, dtype=np.float16), np.array([True, False])))
    def items_of_small_arrays(a, flags):
        return torch.ones(2) * a.item(), [torch.ones(1) for flag in flags if flag], dict(zip("xy", flags)), a[()]

    @programs(lambda: np.arange(3.0))
    def a_place_that_is_not_there(a):
        try:
            return torch.ones(2) * a[3]
        except IndexError as error:
            return torch.zeros(2), str(error)

    @programs(array, graphs=2, breaks=1)
    def a_number_behind_a_write(a):
        before = a[0, 0]
        torch.from_numpy(a).add_(1)
        return torch.ones(2) * a[0, 0] + before

    @programs(lambda: np.arange(100.0), graphs=0, breaks=1)
    def a_large_array(a):
        return list(a)

    @programs(lambda: array().T, lambda: array()[:, ::2], graphs=2)
    def another_layout(a):
        return [*torch.from_numpy(a).stride(), *torch.tensor(a).stride()], torch.tensor(a)

    def an_array_is_written_to(a):
        t = torch.from_numpy(a)
        t.add_(1)
        return t * 2, t

    def one_memory_and_two_tensors(a):
        first, second = torch.from_numpy(a), torch.as_tensor(a)
        first.mul_(2)
        return first is second, second + 1, torch.tensor(a).add_(1)

    def a_leaf_over_an_array(a):
        t = torch.from_numpy(a).requires_grad_()
        return t, (t * t).sum(), t.requires_grad, torch.from_numpy(a).requires_grad

    @programs(lambda: np.array([1, 2], dtype=object), graphs=0, breaks=1)
    def an_array_of_objects(a):
        try:
            return torch.from_numpy(a)
        except TypeError:
            return a.shape

    @programs(lambda: (torch.randn(3, 3, requires_grad=True), places(), places(np.int32)))
    def a_tensor_is_subscripted_with_arrays(x, i, j):
        return x[i], x[:, i], x[..., j, None], x[i, j], x[1:, i], x[i, 0]

    @programs(lambda: (torch.randn(3, requires_grad=True), np.tril_indices(3, -1)))
    def a_tensor_is_written_to_at_arrays(x, places):
        made = x.new_zeros(3, 3)
        made[places[0], places[1]] = x
        made[places] += 1
        return made

    @programs(lambda: torch.randn(3, 3, requires_grad=True))
    def a_tensor_is_subscripted_with_arrays_of_constants(x):
        places = np.arange(2)
        return x[places], x[:, places, None], places.tolist()

    @programs(lambda: (torch.randn(3, 3), places(bool), places(np.float32)), graphs=1, breaks=1)
    def a_tensor_is_subscripted_with_a_mask_and_with_reals(x, mask, reals):
        chosen = x[mask]
        try:
            return chosen, x[reals]
        except IndexError as error:
            return chosen, str(error)


@histories
class Calls:
    def numbers_in_an_array_that_is_written_to(compiled):
        f = compiled(lambda x, a: (x * a[0] + len([value for value in a if value > 1]), a[-1]))
        a = np.arange(3.0)
        for number in (1.0, 1.0, 2.5, -0.5):
            yield f(torch.ones(2), a)
            a[0] = number
        yield f(torch.ones(2), a), f(torch.ones(2), a[:2]), f(torch.ones(2), a.astype(np.int32))

    def arrays_of_other_kinds(compiled):
        program = compiled(lambda a: (torch.from_numpy(a) * 2, a.shape))
        for made in (array(), array() + 1, array().T, array().astype(np.int64), array()[0], array()[:, ::-1], 3):
            yield attempt(program, made)


@pytest.mark.parametrize("history", histories)
def test_same_history_as_eager(history):
    compare(history, "aot_eager")


def test_gradients_are_of_the_places_that_stand_in_the_array_then():
    def gradient(fn):
        x, where = torch.arange(3.0, requires_grad=True), places()
        result = fn(x, where)
        where[:] = 1
        result.sum().backward()
        return x.grad

    fn = lambda x, where: x[where].sin()
    assert torch.equal(gradient(minidynamo.compile(fn, backend="aot_eager")), gradient(fn))


def test_the_result_is_over_the_memory_of_the_array():
    a = array()
    for fn in (lambda a: torch.from_numpy(a), lambda a: torch.as_tensor(a)):
        minidynamo.compile(fn, backend="eager")(a)[0, 0] = 7
        assert a[0, 0] == 7
        a[0, 0] = 0


@pytest.mark.parametrize(
    ("program", "value", "advice"),
    [
        (lambda a, x: x * float((a * 2).sum()), array(), "torch.from_numpy"),
        (lambda a, x: x * float(a.sum()), array(), "torch.from_numpy"),
        (lambda g, x: x + torch.rand(3, generator=g), torch.Generator(), "Draw the numbers before"),
    ],
    ids=["arithmetic", "method", "generator"],
)
def test_what_to_write_instead(program, value, advice):
    with pytest.raises(minidynamo.errors.Unsupported, match=advice):
        minidynamo.compile(program, backend="eager", fullgraph=True)(value, torch.ones(3))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_a_number_of_numpy_has_two_versions_and_so_has_a_plain_number(kind):
    def scale(x, factor):
        return x * factor

    x = torch.ones(2)
    compiled = minidynamo.compile(scale, backend="eager")
    for value in (2, 3, 4):
        assert torch.equal(compiled(x, kind(value)), x * kind(value))
    assert compiled.stats.compiles == 2
    assert f"value of `factor`: expected {kind(2)!r}, got {kind(3)!r}" in compiled.why()
    compiled.reset()
    for value in (2, 3, 4, 5):
        assert torch.equal(compiled(x, kind(value).item()), x * kind(value))
    assert compiled.stats.compiles == 2


@pytest.mark.parametrize("kind", ["e", "f", "d", "h", "l", "B", "?", "F", "D"])
def test_a_tensor_stores_numbers_that_are_such_to_python(kind):
    kind = np.dtype(kind).type
    compiled = minidynamo.compile(store, backend="eager")
    for value in (1, 2, 3):
        x = torch.zeros(2, dtype=torch.complex64)
        expected = attempt(store, x.clone(), kind(value))
        assert repr(attempt(compiled, x, kind(value))) == repr(expected)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, np.float16, np.float32, np.float64])
def test_a_tensor_of_a_number_that_varies(make, kind):
    program = lambda x, n: (x * make(n), make(n), make(n) + 1)
    numbers = [lambda n=n: (torch.ones(2), kind(n)) for n in (2, 3, 4, 5)]
    assert_same_as_eager(program, *numbers, graphs=2, recompiles=1)
