import contextlib
import copy
import dataclasses
import datetime
import enum
import inspect
import math

import pytest
import torch

from minidynamo.tracer.polyfills import libraries as twins
from minidynamo.tracer.polyfills.libraries import leave_stack
from minidynamo.tracer.records.registry import POLYFILLS
from tests.tracer.polyfills.agreement import NUMBERS, calls_of


def annotated(x: int, *, y: str = "") -> None: ...


CASES = {
    inspect.get_annotations: [(annotated,), (enum.Enum,), (math,), (len,)],
    datetime.timedelta.total_seconds: [
        (datetime.timedelta(days, seconds, microseconds),)
        for days, seconds, microseconds in ((0, 0, 1), (-1, 3, 999999), (999999999, 86399, 7), (0, 1, 500000))
    ],
    math.prod: [([],), (NUMBERS,), ([2, 3], {"start": 5})],
    copy.copy: [([1],), ({1: 2},), ((1, 2),), ("a",)],
}


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(CASES)))
def test_twin_gives_what_the_original_gives(original, args, kwargs):
    expected = original(*args, **kwargs)
    actual = POLYFILLS[id(original)](*args, **kwargs)
    assert type(actual) is type(expected) and actual == expected


@dataclasses.dataclass
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Derived(Point):
    z: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Scaled:
    x: int
    by: dataclasses.InitVar[int]
    offset: dataclasses.InitVar[int] = 0

    def __post_init__(self, by, offset):
        self.x = self.x * by + offset


def test_dataclasses():
    point = Point(1, [Point(2), {"a": (3, None)}])
    assert twins.dataclass_replace(point, x=5) == dataclasses.replace(point, x=5)
    assert twins.dataclass_asdict(point) == dataclasses.asdict(point)
    assert twins.field_names(Derived) == ("x", "y", "z") and twins.init_names(Derived) == (("x", "y"), ())
    assert twins.dataclass_replace(Derived(1), x=2) == dataclasses.replace(Derived(1), x=2)
    assert twins.dataclass_astuple(point) == dataclasses.astuple(point)
    assert twins.dataclass_replace(Scaled(2, 3), by=4) == dataclasses.replace(Scaled(2, 3), by=4) == Scaled(24, 1)
    for refused in (lambda: twins.dataclass_replace(Derived(1), z=2), lambda: twins.dataclass_replace(Scaled(2, 3))):
        with pytest.raises(NotImplementedError):
            refused()
    with pytest.raises(TypeError):
        twins.dataclass_asdict(3)


def test_a_class_without_a_wrapped_function_is_unwrapped():
    wrapping = type("Wrapping", (), {"__wrapped__": int})
    assert twins.unwrap(dict) is dict
    with pytest.raises(NotImplementedError, match="versions of Python differ"):
        twins.unwrap(wrapping)


def test_annotations_that_are_none():
    annotated_wrongly = type("Wrong", (), {"__call__": len, "__annotations__": 3})()
    for twin in (inspect.get_annotations, twins.get_annotations):
        with pytest.raises(TypeError):
            twin(3)
        with pytest.raises(ValueError):
            twin(annotated_wrongly)
    with pytest.raises(NotImplementedError):
        twins.get_annotations(annotated, eval_str=True)


class Kind(type):
    def __call__(cls, *args):
        return super().__call__(*args)

    @property
    def of_metaclass(cls):
        return 1


class Described(metaclass=Kind):
    __slots__ = ("__dict__", "slot")
    size = 3

    def __init__(self):
        self.__dict__.update(size=4, total=5, own=6)

    @property
    def total(self):
        return 7


@pytest.mark.parametrize(
    "name", ["size", "total", "own", "slot", "missing", "__init__", "__new__", "__call__", "__dict__", "of_metaclass"]
)
def test_attributes_without_binding(name):
    for value in (Described(), Described, Kind, int, type, 3, annotated, [1], Point(1), Point):
        expected = inspect.getattr_static(value, name, None)
        actual = twins.getattr_static(value, name, None)
        assert actual is expected or (name == "__dict__" and type(actual) is type(expected)), value
    with pytest.raises(AttributeError):
        twins.getattr_static(Described(), "nothing")
    with pytest.raises(NotImplementedError, match="defines `__dict__`"):
        twins.getattr_static(type("Owner", (), {"__dict__": property(lambda self: {})})(), name)


def test_torch():
    assert twins.numel(torch.zeros(2, 3)) == 6
    assert twins.torch_assert(True, "") is None
    with pytest.raises(NotImplementedError):
        twins.torch_assert(False, "")
    assert twins.annotate(list[int], [2]) == torch.jit.annotate(list[int], [2]) == [2]
    for kind in (torch.Tensor, list[int], dict[str, int], tuple[int, str], (int, str)):
        for value in (torch.zeros(2), [1], {"a": 1}, (1, "a"), "a", None):
            assert twins.jit_isinstance(value, kind) is torch.jit.isinstance(value, kind)


class Stack(contextlib.ExitStack):
    __exit__ = leave_stack


def callback(log, name, answer):
    def leave(kind, error, traceback):
        log.append((name, kind, str(error)))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return leave


@pytest.mark.parametrize("answers", [(), (None, True), (True, None), (KeyError("a"), None), (True, KeyError("a"))])
@pytest.mark.parametrize("error", [None, ValueError("v")])
def test_leaving_a_stack(answers, error):
    def run(cls):
        log = []
        try:
            with cls() as stack:
                for name, answer in enumerate(answers):
                    stack.push(callback(log, name, answer))
                if error is not None:
                    raise error
        except Exception as raised:
            log.append((type(raised), str(raised), str(raised.__context__)))
        return log

    assert run(Stack) == run(contextlib.ExitStack)


def test_several_errors_are_not_traced():
    with pytest.raises(NotImplementedError, match="several errors"), Stack() as stack:
        stack.push(callback([], "a", KeyError()))
        stack.push(callback([], "b", KeyError()))
