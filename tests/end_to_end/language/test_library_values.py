"""Values and functions of libraries that are constants, checks or aliases: versions, type hints, torch._check."""

import datetime
import inspect
import os
import sys
import typing

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


Vectors = list[torch.Tensor]


class Layer:
    def message(self, x, scale: float = 2.0, *, shift: int = 1):
        return x * scale + shift


class Shifted(Layer):
    def __init__(self, by, *, scale=1):
        self.by = by


class WithoutScale(Layer):
    def message(self, x):
        return x + 1


def scaled(x, factor=2):
    return x * factor


class Options(typing.TypedDict, total=False):
    scale: float
    name: str


@programs()
class VersionsAndTypeHints:
    settings_of_the_interpreter = lambda x: (x + 1, sys.getrecursionlimit() > 0, os.getpid() == os.getpid())

    def the_version_of_python(x):
        major, minor = sys.version_info[:2]
        new = sys.version_info >= (3, 8) and sys.version_info.major == major
        made = x * major if new and sys.version_info > (3, 0, 0) else x, minor, sys.version_info[0]
        return *made, len(sys.version_info)

    def parts_of_type_hints(x):
        pair = dict[str, int]
        made = x + 1, typing.get_origin(Vectors), typing.get_args(pair)
        return *made, typing.get_origin(int), Vectors == list[torch.Tensor]

    @programs(lambda: (Layer(), torch.randn(4)), lambda: (WithoutScale(), torch.randn(4)), graphs=2, recompiles=1)
    def arguments_by_signature(layer, x):
        known = {"x": x, "scale": 3.0, "unwanted": None}
        wanted = inspect.signature(layer.message).parameters
        kinds = [(name, one.kind.name, one.annotation) for name, one in wanted.items()]
        return layer.message(**{name: known[name] for name in wanted if name in known}), kinds

    def signatures_of_classes(x):
        parameters = [[*inspect.signature(cls).parameters] for cls in (Shifted, torch.nn.Linear)]
        static = inspect.getattr_static(torch.nn.Linear, "forward") is torch.nn.Linear.forward
        return x + 1, parameters, static, inspect.getattr_static(Shifted(2), "by")

    @programs(lambda: (torch.ones(2), {"scale": 2.0}), lambda: (torch.ones(2), {"name": "x"}), graphs=2, recompiles=1)
    def typed_dictionaries(x, given):
        options = Options(scale=1.0, name="default") | given
        return x * options["scale"], options


def test_a_signature_that_changes_is_seen():
    def program(x):
        parameters = inspect.signature(scaled).parameters
        return x * parameters["factor"].default, parameters["factor"].annotation is float

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1))[1] is False
    try:
        scaled.__annotations__["factor"] = float
        assert compiled(torch.ones(1))[1] is True
        scaled.__defaults__ = (5,)
        assert compiled(torch.ones(1))[0].item() == 5
    finally:
        scaled.__defaults__ = (2,)
        del scaled.__annotations__["factor"]


def test_a_recursion_limit_that_changes_is_seen():
    compiled = minidynamo.compile(lambda x: (x + 1, sys.getrecursionlimit()), backend="eager", fullgraph=True)
    limit = sys.getrecursionlimit()
    assert compiled(torch.ones(1))[1] == limit
    try:
        sys.setrecursionlimit(limit + 10)
        assert compiled(torch.ones(1))[1] == limit + 10
    finally:
        sys.setrecursionlimit(limit)


@programs()
class LibraryChecks:
    def checks_that_hold(x):
        torch._check(x.shape[0] == 4)
        torch._check_index(x.dim() == 1, lambda: "a vector is expected")
        torch._check_value(True)
        return x + 1

    def a_check_that_fails_is_caught(x):
        try:
            torch._check_value(x.shape[0] == 5, lambda: f"five are expected, not {x.shape[0]}")
        except ValueError:
            return x + 1
        return x


@pytest.mark.parametrize("message", [None, lambda: "only ones are expected"])
def test_a_check_of_all_elements_is_in_the_graph(message):
    def fn(x):
        y = x + 1
        torch._check_tensor_all(x == 1, message)
        return y * 2

    assert_same_as_eager(fn, lambda: torch.ones(4), fullgraph=True)
    assert_same_as_eager(fn, vector)


@pytest.mark.parametrize("sizes", [(2, 3), (0, 3), (5, 5)])
def test_a_check_of_numbers_in_a_tensor_is_in_the_graph(sizes):
    def fn(x, s):
        height, width = s.tolist()
        torch._check(height > 0, lambda: f"the height {height} is not positive")
        torch._check_value(height * width <= 16, lambda: f"{height} * {width} is too large")
        return x * 2, height

    holds = sizes == (2, 3)
    assert_same_as_eager(fn, lambda: (vector(), torch.tensor(sizes)), fullgraph=holds)


@pytest.mark.parametrize("condition", [True, torch.ones(2)])
def test_a_check_of_all_elements_refuses_other_values_in_torchs_words(condition):
    def fn(x):
        torch._check_tensor_all(condition)
        return x + 1

    assert_same_as_eager(fn, vector)


@pytest.mark.parametrize("condition", [lambda x: x.shape[0] == 5, lambda x: x.sum() > 0, lambda x: None])
def test_what_torch_refuses_is_refused_in_its_words(condition):
    def fn(x):
        y = x + 1
        torch._check(condition(x))
        return y

    assert_same_as_eager(fn, vector)


@programs()
class ConstructorsOfOld:
    def from_numbers(x):
        made = torch.FloatTensor([1, 2.5]) * 2, torch.LongTensor([[1, 2], [3, 4]])
        made += torch.Tensor([1, True]), torch.BoolTensor([True, False])
        return *made, torch.DoubleTensor([[0.5]]).sum(), x.new([1.0]) if False else x + 1

    def of_a_size(x):
        made = torch.Tensor(2, 3).zero_(), torch.LongTensor(x.shape).fill_(1), torch.FloatTensor()
        return *made, torch.Tensor(0).shape


@pytest.mark.parametrize(
    "make", [lambda: torch.LongTensor([1.5]), lambda: torch.FloatTensor(torch.ones(2)), lambda: torch.Tensor("a")]
)
def test_other_arguments_are_left_to_torch(make):
    assert_same_as_eager(lambda x: (x + 1, make()), vector)


def test_the_default_dtype_is_noticed():
    compiled = minidynamo.compile(lambda x: torch.Tensor([1.0]) + x, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(torch.ones(1)).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@programs(lambda: torch.randn(3, 4, requires_grad=True))
class OtherNames:
    def masked_functions(x):
        mask = torch.tensor([True, False, True, True]).expand(3, 4)
        parts = torch.masked.sum(x, 1, mask=mask), torch.masked.mean(x, mask=mask), torch.masked.amax(x, 0, mask=mask)
        return parts, torch.masked.softmax(x, 1, mask=mask), torch.masked.normalize(x, 2.0, 1, mask=mask)

    @programs()
    def subtraction_from_the_right(x):
        return x.__rsub__(3), torch.rsub(x, 1, alpha=2), 5 - x


def on_a_day(*day):
    return lambda: (torch.randn(4), datetime.date(*day))


class Zone(datetime.tzinfo):
    def utcoffset(self, when):
        return datetime.timedelta(hours=1)


@programs()
class DatesAndTimes:
    def arithmetic_of_dates(x):
        noon = datetime.datetime(2024, 1, 1, 12)
        day = datetime.date(2024, 2, 28) + datetime.timedelta(days=2)
        passed = datetime.datetime(2024, 1, 2) - noon
        made = x * day.day + passed.total_seconds(), day.isoformat(), noon < datetime.datetime.max
        return *made, noon.replace(hour=3), day

    def weeks_of_dates(x):
        found = datetime.date(2024, 1, 1).isocalendar()
        return x * found.week, found, datetime.date(2024, 1, 1).timetuple().tm_yday

    def unpacked_weeks_of_dates(x):
        year, week, day = found = datetime.date(2024, 1, 1).isocalendar()
        return x * week, year, day, found, found.week

    @programs(on_a_day(2024, 1, 1), on_a_day(2024, 1, 2), graphs=2)
    def a_date_as_argument(x, day):
        return x * day.toordinal(), day.weekday(), f"{day}"

    @programs(on_a_day(2024, 12, 30), on_a_day(2024, 1, 2), graphs=2)
    def weeks_and_clocks(x, day):
        year, week, weekday = day.isocalendar()
        start = datetime.time(9, 30)
        opening = datetime.datetime.combine(day, start)
        parts = day.isocalendar().week, opening.time() == start
        parts += start.replace(hour=week % 24), start < datetime.time(10)
        return x * week + start.minute, year, weekday, day.isocalendar(), parts, str(start), start.isoformat(), opening

    @programs(
        *[
            lambda t=t: (vector(), t)
            for t in (datetime.time(1), datetime.time(1, tzinfo=datetime.UTC), datetime.time(2))
        ],
        graphs=3,
    )
    def a_clock_as_argument(x, clock):
        return x * clock.hour, clock.tzinfo, clock, clock.utcoffset(), clock == datetime.time(1)


def test_the_same_moment_in_another_zone_is_noticed():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moments = [
        datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 1, 14, tzinfo=zone),
    ]
    assert_same_as_eager(lambda x, t: (x * t.hour, t), *[lambda t=t: (vector(), t) for t in moments], recompiles=1)


@pytest.mark.parametrize(
    "use",
    [
        lambda: datetime.datetime.now() > datetime.datetime(2020, 1, 1),
        lambda: datetime.date.today() > datetime.date(2020, 1, 1),
        lambda: datetime.datetime(2024, 1, 1, tzinfo=Zone()).utcoffset(),
        lambda: datetime.datetime(2024, 1, 1).timestamp(),
        lambda: datetime.date(2024, 1, 1).strftime("%A"),
        lambda: datetime.time(1).strftime("%p"),
        lambda: datetime.date(2024, 13, 1),
    ],
    ids=["now", "today", "own zone", "timestamp", "words", "half of the day", "no such date"],
)
def test_local_terms_are_not_captured(use):
    assert_same_as_eager(lambda x: (x + 1, use()), vector)
