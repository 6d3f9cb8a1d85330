"""Numbers that change, wherever they live: one more compile, then no more."""

from __future__ import annotations

import builtins
import datetime
import functools
import math
import operator
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of, table

X = torch.arange(4.0)


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    return minidynamo.compile(fn, backend="eager", **options)


Row = tuple[Callable[..., Any], list[tuple[Any, ...]], int]
ROWS: dict[str, Row] = {}


def numbers(*calls: Any, graphs: int = 2) -> Callable[[Any], Any]:
    """Adds a program of a tensor and of numbers, its calls, and the graphs that these compile."""

    def add(name: str, fn: Callable[..., Any]) -> None:
        ROWS[name] = (fn, [call if isinstance(call, tuple) else (call,) for call in calls], graphs)

    return table(add, lambda fn: fn.__name__ in ROWS)


@numbers(20, 21, 55, 99, 99, 3, graphs=3)
def schedule_inside_the_program(x, step):
    rate = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 100)) if step >= 10 else 0.1 * step / 10
    return x * rate, rate


@numbers(*((k, 0.1 * k) for k in range(1, 6)), graphs=4)
def numbers_cross_a_break_and_come_back(x, n, rate):
    n = n + 1
    x = x * rate
    minidynamo.graph_break()
    rate = rate / 2
    return x + n, n * 3, rate


@numbers(2, 3, 2.0, 3.0, True, 4, 5.0, graphs=4)
def numbers_of_other_classes(x, n):
    return x * n, type(n).__name__


def scale(x, by=2.0):
    return x * by


@numbers(*(functools.partial(scale, by=value) for value in (1.0, 2.0, 3.0, 4.0)))
def defaults_and_partial_objects(x, g):
    return g(x)


@numbers(5, 7, 12, 15, 3, 2, 10, graphs=3)
def answer_of_a_test_of_a_bit(x, n):
    n &= 6
    return x * 2 if n & 4 else x + n


@numbers(*(datetime.timedelta(seconds=seconds) for seconds in (1.25, 2.5, 300, 86399, 7.125)))
def spans_of_time(x, elapsed):
    return x * 0.5 ** (elapsed.total_seconds() / 60)


@numbers(*range(6, 30))
def rectified_schedule(x, n):
    decay = 0.999**n
    longest = 2 / (1 - 0.999) - 1
    length = longest - 2 * n * decay / (1 - decay)
    rise = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
    weight = (0.01 * rise) ** 2 / (1 + (0.01 * rise) ** 2)
    return x * (0.01 * rise * (0.9 * (1 - weight) - 1))


def test_a_schedule_of_a_hundred_steps_compiles_twice() -> None:
    def update(parameter, gradient, rate):
        with torch.no_grad():
            parameter.add_(gradient, alpha=-rate)
            return parameter - rate * gradient * 0.1

    f = compiled(update, fullgraph=True)
    one, other = torch.ones(3), torch.ones(3)
    for step in range(100):
        rate = 0.1 * (1 + math.cos(math.pi * step / 100)) / 2
        assert torch.equal(f(one, X[:3], rate), update(other, X[:3], rate))
        assert torch.equal(one, other)
    assert f.stats.graphs == 2


def test_the_smaller_and_the_larger_of_two_numbers_are_not_decided() -> None:
    def annealed(x, step, other):
        rate, last = min(1.0, step / 3), max(step, other)
        return x * rate, rate, last, [min(other, step), last], math.copysign(1.0, max(rate, 0.5))

    f = compiled(annealed, fullgraph=True)
    for step, other in ((1, 2), (2, 1), (2000, 1000), (5, 5), (1000, 2000), (3, 4), (-7, 3)):
        expected, made = annealed(X, step, other), f(X, step, other)
        assert torch.equal(made[0], expected[0]) and made[1:] == expected[1:]
        assert (made[2] is step, made[2] is other) == (expected[2] is step, expected[2] is other)
    assert f.stats.graphs == 2


def test_the_larger_of_two_floats_is_the_one_that_python_takes() -> None:
    f = compiled(lambda x, a, b: (x * max(a, b), max(a, b), min(a, b), max(a, b, 1.5)), fullgraph=True)
    for a, b in ((3.0, 4.0), (5.0, 4.0), (math.nan, 3.0), (3.0, math.nan), (-0.0, 0.0), (0.0, -0.0)):
        _, *made = f(X, a, b)
        assert repr(made) == repr([max(a, b), min(a, b), max(a, b, 1.5)])


def test_arguments_may_be_called_like_what_computes_them() -> None:
    def program(x, max, min, abs):
        larger, smaller = builtins.max(max, min), builtins.min(max, min)
        return x * larger, larger, smaller, builtins.abs(abs - min)

    f = compiled(program)
    for numbers in ((3, 4, 5), (5, 4, 3), (7, 2, 1)):
        assert f(X, *numbers)[1:] == program(X, *numbers)[1:]


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.rate = 0.5
        self.log: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.rate *= 0.9
        self.log.append(self.calls)
        return x * self.calls * self.rate


def test_counters_on_a_module_compile_twice() -> None:
    module, reference = Counter(), Counter()
    minidynamo.compile(module, backend="eager", fullgraph=True)
    for _ in range(6):
        module.log.clear(), reference.log.clear()
        assert torch.equal(module(X), reference(X))
        assert (module.calls, module.rate, module.log) == (reference.calls, reference.rate, reference.log)
        assert type(module.calls) is int and type(module.rate) is float
    assert minidynamo.stats(module).graphs == 2


@dataclass
class State:
    step: int = 0
    beta: float = 0.9


def test_a_bias_correction_compiles_twice() -> None:
    def corrected(x, state):
        state.step += 1
        correction = 1 - state.beta**state.step
        return x / correction, math.sqrt(correction)

    f = compiled(corrected, fullgraph=True)
    one, other = State(), State()
    for _ in range(8):
        got, expected = f(X, one), corrected(X, other)
        assert torch.equal(got[0], expected[0]) and got[1] == expected[1] and one == other
    assert f.stats.graphs == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 0.0, 1e308, 5e-324])
def test_floats_of_every_kind(value: float) -> None:
    def program(x, a):
        return x * a, a * 2, a + 1, x / (a + 3)

    f = compiled(program, fullgraph=True)
    for a in (0.5, 0.25, value):
        got, expected = f(X, a), program(X, a)
        assert repr(got[1:3]) == repr(expected[1:3])
        assert all(torch.equal(g, e) or g.isnan().any() for g, e in zip((got[0], got[3]), (expected[0], expected[3])))
    assert f.stats.graphs == 2


def test_a_function_of_numbers_that_would_raise_raises() -> None:
    f = compiled(lambda x, a: x * math.sqrt(a) + math.log(a + 2))
    for a in (1.0, 2.0, 3.0):
        f(X, a)
    with pytest.raises(ValueError):
        f(X, -1.0)
    with pytest.raises(ValueError):
        f(X, -3.0)


@pytest.mark.parametrize("one", [1, 1.0])
@pytest.mark.parametrize("divide", [operator.truediv, operator.floordiv, operator.mod, divmod])
def test_a_division_by_zero_that_is_caught(divide: Callable[..., Any], one: Any) -> None:
    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        try:
            ratio = divide(a, b)
        except ZeroDivisionError as error:
            return x * 2, str(error), error.args
        return x + 1, str(type(ratio))

    calls = [(one, 2 * one), (2 * one, 0 * one), (3 * one, 0 * one), (4 * one, 0 * one), (5 * one, 7 * one)]
    make = [lambda a=a, b=b: (torch.randn(3), a, b) for a, b in calls]
    assert_same_as_eager(program, *make, graphs=3, breaks=0, recompiles=2)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_number_chooses_a_view_that_is_returned_and_what_has_a_gradient(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x[i].sin(), y[i]

    makers = [lambda i=i: (torch.randn(5, 3, requires_grad=True), torch.randn(5, 3), i) for i in range(1, 5)]
    assert_same_as_eager(program, *makers, backend=backend, graphs=2, recompiles=1, rtol=1e-6, atol=1e-6)


# Behaviour checks


def test_CL_6_an_int_in_a_cell_compiles_twice_a_swapped_tensor_once() -> None:
    factor, weight = 2, torch.ones(4)

    def inner(x):
        return x * factor + weight

    f = compiled(lambda x: inner(x), fullgraph=True)
    for value in (2, 3, 4):
        factor = value
        assert torch.equal(f(X), X * value + weight)
    assert f.stats.graphs == 2
    weight = torch.full((4,), 5.0)
    assert torch.equal(f(X), X * 4 + 5)
    assert f.stats.graphs == 2


def test_a_number_meets_a_bool_that_is_known(logged) -> None:
    def fn(x, n):
        return x * n, n < True, n > False, n == True, n + True, n * False  # noqa: E712

    f = compiled(fn, dynamic=True, fullgraph=True)
    for n in (3, 5, 0, -2, 1):
        assert [(type(a), a) for a in f(X, n)[1:]] == [(type(a), a) for a in fn(X, n)[1:]]
    assert not [record for record in logged if "failed to eval" in record.getMessage()]


def test_a_power_too_large_for_a_tensor_is_exact_when_its_base_becomes_known() -> None:
    def fn(x, n):
        try:
            known = math.exp(n)
        except OverflowError:
            known = "too large"
        return x * 2, known, n**2

    f = compiled(fn, dynamic=True)
    for n in (2**40, 3, 4, 2**41):
        assert f(X, n)[1:] == fn(X, n)[1:]


BITS: list[Callable[..., Any]] = [
    lambda x, n: x * (n & 1),
    lambda x, n: x + (n & 7) + (6 & n),
    lambda x, n: x * (n >> 1) - (n << 2),
    lambda x, n: x * (n | 8) + (n ^ 3),
    lambda x, n: x * ~n + (n & -4),
    lambda x, n: x * (1 << (n & 3)) + (1000 >> n),
    lambda x, n: x.repeat(n)[: 4 * (n >> 1)],
    lambda x, n: x * n.__and__(6) + n.__rxor__(5) + (n & True),
    lambda x, n: x + 2 * (n + (n ^ 1)) + (n | 1) * 3 % 5,
]


def test_bits_of_sizes_keep_their_relation_to_them() -> None:
    def program(x):
        half = x.shape[0] >> 1
        return x[:half] + x[half : half << 1], x[: x.shape[0] & 3].sum()

    f = compiled(program, fullgraph=True)
    for rows in (4, 5, 6, 7, 9, 12):
        x = torch.randn(rows)
        assert all(map(torch.equal, f(x), program(x)))
    assert f.stats.graphs == 2


def test_shifts_that_do_not_fit_are_taken_as_they_are() -> None:
    def program(x, n):
        return x * float(3 << n)

    f = compiled(program)
    for n in (3, 5, 7, 70, 80):
        assert torch.equal(f(X, n), program(X, n))
    for refused in (-1, 2.0):
        with pytest.raises((ValueError, TypeError)):
            f(X, refused)


@pytest.mark.parametrize(
    ("program", "calls", "line"),
    [
        (lambda x, k: x * pow(k, 2, 7), (5, 6, 7), "pow"),
        (lambda x, k: torch.nn.functional.one_hot(x.long(), k), (5, 6, 7), "one_hot"),
        (lambda x, k: torch.kron(x, torch.ones(k)), (5, 6, 7), "kron"),
        (lambda x, k: x * complex(k), (5, 6, 7), "complex"),
    ],
)
def test_what_torch_needs_as_a_number_is_told_with_its_line(program: Any, calls: Any, line: str) -> None:
    f = compiled(program)
    for value in calls:
        assert torch.equal(f(X, value), program(X, value))
    assert f.stats.graphs == 3
    newest = f.why().split("MD301")[1]
    assert line in newest and "expected" in newest, f.why()


# Python and numpy functions of a float that is not constant.
MADE: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "a sum of floats": lambda x, s: x * math.fsum([s, 1.0, s]),
    "a mean": lambda x, s: x * statistics.fmean([s, 1.0]),
    "a distance": lambda x, s: x * math.dist((s, 1.0), (0.5, s)) + math.hypot(s, 1.0, 2.0),
    "parts": lambda x, s: x * math.modf(s * 3)[0] + math.modf(-s)[1],
    "mantissa and exponent": lambda x, s: (x * math.frexp(s)[0], math.frexp(s), math.frexp(int(s * 10))),
    "of numbers": lambda x, s: x * s.real + s.imag * s.conjugate() + int(s * 10).numerator + int(s * 10).denominator,
    "numpy's ints": lambda x, s: x * np.int64(s * 100) + np.int32(s * 7),
    "divisors": lambda x, s: x * math.gcd(int(s * 10), 6, 12) + math.lcm(int(s * 10), 2, 3),
}
FLOATS = (0.61, 0.72, 0.43, 0.94, 2.5, 3.6)
ROWS |= {f"bits {k}": (fn, [(n,) for n in (5, 7, 11, 6, 4, 9, 13)], 2) for k, fn in enumerate(BITS)}
ROWS |= {name: (fn, [(s,) for s in FLOATS], 2) for name, fn in MADE.items()}


@pytest.mark.parametrize("name", ROWS)
def test_numbers_vary_in_one_graph(name: str) -> None:
    program, calls, graphs = ROWS[name]
    f = compiled(program, fullgraph=name != "numbers_cross_a_break_and_come_back")
    for numbers in calls:
        got, expected = f(X, *numbers), program(X, *numbers)
        if isinstance(expected, torch.Tensor):
            got, expected = (got,), (expected,)
        assert torch.equal(got[0], expected[0]) and repr(got[1:]) == repr(expected[1:])
    assert f.stats.graphs == graphs


def test_numbers_that_python_refuses_are_refused() -> None:
    def cut(x, s):
        return x * math.modf(s)[0] + np.int64(s)

    def summed(x, s):
        return x * math.fsum([s, -s, math.inf])

    for program in (cut, summed):
        f = compiled(program)
        for s in (0.5, 1.5, -2.5, 1e200, math.inf, math.nan, 3.5):
            assert outcome(f, s) == outcome(program, s)


def outcome(f: Callable[..., Any], s: float) -> str:
    try:
        return str(f(X, s))
    except (OverflowError, ValueError) as error:
        return repr(error)


def window(x, part, n):
    return x[part], x[..., part.start :], part


def bounds_of_a_window(x, part, n):
    return x * 2, part.indices(n), part.indices(x.shape[0])


def written_window(x, part, n):
    y = x.clone()
    y[part] += 1
    return y, operator.index(n)


@pytest.mark.parametrize("fn", [window, bounds_of_a_window, written_window])
def test_the_bounds_of_a_slice_from_outside_vary(fn: Callable[..., Any]) -> None:
    f = compiled(fn, fullgraph=True)
    for start, stop in ((1, 9), (2, 11), (3, 8), (4, 19), (5, 12)):
        x, part = torch.randn(20), slice(start, stop, 2)
        for got, expected in zip(f(x, part, stop + 3), fn(x, part, stop + 3), strict=True):
            assert got is expected or repr(got) == repr(expected)
    assert f.stats.graphs == 2


def test_slices_from_outside_are_told_apart_although_their_bounds_vary() -> None:
    def compared(x, one, other, pair):
        return x[one], one is other, pair[0] is pair[1], one is one, [other, one][1] is one, pair[1] is not one

    f = compiled(compared)
    for stop in (4, 5, 6, 7):
        one, other = slice(0, stop), slice(0, stop)
        for args in ((one, one, (one, one)), (one, other, (other, one)), (one, other, (other, other))):
            assert repr(f(torch.ones(9), *args)) == repr(compared(torch.ones(9), *args))


def test_dates_that_are_needed_whole_are_left_to_python_after_a_few() -> None:
    def since(x, day):
        return (x + 1) * (day - datetime.date(2024, 1, 1)).days

    f = compiled(since)
    for number in range(1, 20):
        day = datetime.date(2024, 1, number)
        assert torch.equal(f(X, day), since(X, day))
    assert f.stats.compiles == 7 and f.stats.fallbacks == 0


OF_NUMBERS_ALONE: dict[str, Callable[..., Any]] = {
    "read": lambda x, rate: x * torch.mul(rate, 2).item(),
    "decides": lambda x, rate: x * 2 if torch.mul(rate, 2) > 6 else x,
    "size_read": lambda x, rate: x * torch.div(x.shape[0], 2).item(),
    "size_decides": lambda x, rate: x * 2 if torch.div(x.shape[0], 2) > 3 else x,
    "size_and_float": lambda x, rate: x * 2 if torch.sub(7.5, x.shape[0]) > 0 else x,
    "beside_a_tensor": lambda x, rate: x * torch.add(torch.tensor(2.0), rate).item(),
    "power": lambda x, rate: x * (torch.tensor(2.0) ** rate).item(),
}
"""Torch makes tensors of the numbers, and tells of fake ones that they hold NaN."""


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OF_NUMBERS_ALONE)
def test_what_torch_makes_of_numbers_that_vary_is_not_known(name: str, backend: str) -> None:
    program = OF_NUMBERS_ALONE[name]
    f = minidynamo.compile(program, backend=backend)
    for size, rate in ((8, 1.5), (8, 2.5), (6, 3.5), (10, 4.5), (12, 0.5), (4, 3.25)):
        x = torch.arange(1.0, size + 1)
        assert torch.equal(f(x, rate), program(x, rate))


@pytest.mark.parametrize("step", [abs, operator.neg, lambda n: 1.5 - n, lambda n: math.sqrt(abs(n))])
def test_numbers_of_many_operations_in_one_another(step: Callable[[float], float]) -> None:
    def fn(x: torch.Tensor, n: float) -> torch.Tensor:
        for _ in range(210):  # more than Python's limit of nested parentheses
            n = step(n)
        return x * n

    f = compiled(fn)
    for n in (0.5, 2.5, 3.5, 4.5):
        assert torch.equal(f(X, n), fn(X, n))
    assert f.stats.compiles <= 6, f.why()
    assert f.stats.fallbacks == str(f.explain()).count("MD308 the loop in")


OF_A_KIND = {
    "tuples": [("s", 2.0), ("s", 3.0), ("s", 4.0)],
    "lists": [["s", 2.0], ["s", 3.0], ["s", 4.0]],
    "dicts": [{"s": 2.0}, {"s": 3.0}, {"s": 4.0}],
    "floats": [2.0, 3.0, 4.0],
    "ints": [2, 3, 4],
    "texts": ["one", "two", "three"],
    "bytes": [b"one", b"two", b"three"],
}


@pytest.mark.parametrize("kind", OF_A_KIND)
@pytest.mark.parametrize("other", ["same", 7.5, None, (), [], {}, b"same", ..., range(3)], ids=repr)
def test_what_is_of_another_kind_is_not_equal_whatever_it_is(kind: str, other: Any) -> None:
    values = OF_A_KIND[kind]
    if type(values[0]) is type(other) or {type(values[0]), type(other)} == {int, float}:
        pytest.skip("these are of one kind")

    def program(x: torch.Tensor, value: Any, other: Any) -> Any:
        found = [value == other, value != other, other == value, value in (other,), value in [other, other]]
        match value:
            case "same" | None | 7.5:
                x = x + 1
        return x * 2, found

    make = [lambda value=value: (torch.randn(3), value, other) for value in values]
    assert_same_as_eager(program, *make, graphs=1, breaks=0, recompiles=0)


class Steps:
    def chunks(x, size):
        parts = [x[i : i + size].sin().sum() + i for i in range(0, x.shape[0], size)]
        return torch.stack(parts)

    def one_step(x, size):
        n = x.shape[0]
        for start in range(0, n, n):
            x = x[start : start + n] * (start + 2)
        return x

    def from_both_ends(x, size):
        total = x.sum()
        for i in range(1, x.shape[0] - 1, size):
            total = total + x[i] * i
        return total

    def no_steps(x, size):
        for i in range(x.shape[0], 3, size):
            x = x + i
        return x

    def with_a_break(x, size):
        for i in range(0, x.shape[0], size):
            x = x + x[i]
            minidynamo.graph_break()
        return x


@pytest.mark.parametrize("program", rows_of(Steps))
def test_a_range_with_steps_has_a_version_for_each_number_of_steps(program):
    compiled, compiles = minidynamo.compile(program, backend="eager"), []
    for size in (8, 7, 6, 5):
        for length in (size + 1, size + 2, 2 * size - 2, 2 * size):
            x = torch.randn(length)
            assert torch.equal(compiled(x, size), program(x, size))
        compiles.append(compiled.stats.compiles)
    assert compiles[1] == compiles[-1], compiles


def test_steps_back_are_the_same():
    def fn(x):
        return [x[i] * i for i in range(x.shape[0] - 1, -1, -2)]

    assert_same_as_eager(fn, *[functools.partial(torch.randn, length) for length in (4, 5, 6, 7)])
