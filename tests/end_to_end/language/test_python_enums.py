"""Enums: members, values, names, look-up, arithmetic, and as keys."""

import enum

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, rows_of, vector

programs = Programs()
test_same_as_eager = programs.test()


class Color(enum.Enum):
    RED = 1
    BLUE = "b"
    BOTH = (1, 2)

    @property
    def nice(self):
        return self.name.lower()

    @classmethod
    def default(cls):
        return cls.RED

    def __str__(self):
        return "Color!" + self.name


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Flag):
    X = enum.auto()
    Y = enum.auto()
    Z = enum.auto()


class IntMode(enum.IntFlag):
    X = 1
    Y = 2


class Text(str, enum.Enum):
    A = "a"
    B = "b"


class StrictText(enum.StrEnum):
    A = "a"
    B = "b"


class Version(enum.Enum):
    OLD = 1
    NEW = [2]

    @classmethod
    def _missing_(cls, value):
        ASKED.append(value)
        return None if value == 0 else cls.OLD


class Kept(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value):
        ASKED.append(value)
        made = object.__new__(cls)
        made._name_, made._value_ = "KEPT", value
        return cls._value2member_map_.setdefault(value, made)


class Access(enum.Flag):
    READ = 1
    WRITE = 2

    @classmethod
    def _missing_(cls, value):
        ASKED.append(value)
        return super()._missing_(value)


ASKED: list = []


class Planet(enum.Enum):
    EARTH = (1, 2.0)
    MARS = (3, 4.0)

    def __init__(self, n, size):
        self.n = n
        self.size = size


def histories(program):
    """Yields the results of three calls, eager and compiled, with the recorded enum calls."""
    for function in (program, minidynamo.compile(program, backend="eager")):
        ASKED.clear()
        for cls, value in ((Kept, 5), (Access, 3)):
            cls._value2member_map_.pop(value, None)
        yield [repr((function(torch.ones(3)), ASKED)) for _ in range(3)]


class OtherValues:
    def asked(x):
        return x + 1, Version(1), Version([2]), Version(7), Version(value=8), Version(Version.NEW), [*ASKED]

    def asked_in_vain(x):
        try:
            return x, Version(0)
        except ValueError:
            return x + 1, len(ASKED)

    def asked_once(x):
        return x + 1, Kept(5).value, Kept(5) is Kept(5), [*ASKED]

    def asked_by_an_operator(x):
        return x + 1, Access(3), Access.READ | Access.WRITE, [*ASKED]


class Activation(enum.Enum):
    RELU = "relu"
    TANH = "tanh"

    def __call__(self, x, factor=1):
        return getattr(torch, self.value)(x) * factor


class Affine(tuple):
    def __call__(self, x):
        return x * self[0] + self[1]


def calls_members(activation, affine, x):
    return affine(activation(x, factor=2)), list(map(activation, [x])), callable(activation)


LOOKED = []
WORDS = {1: "one", 2: "two"}


class Asking(enum.Enum):
    A = 1
    B = 2

    def __getattr__(self, name):
        LOOKED.append(name)
        if name.startswith("is_"):
            return self.name.lower() == name[3:]
        raise AttributeError(name)

    def __str__(self):
        return WORDS[self.value]

    @property
    def failing(self):
        raise AttributeError("failing")


class Guarding(enum.Enum):
    A = 1

    def __getattribute__(self, name):
        LOOKED.append(name)
        return super().__getattribute__(name)


@programs()
class Cases:
    attributes = lambda x: (x * Planet.MARS.n, Planet.EARTH.size)

    def members(x):
        return x + 1, Color.RED, Color.RED.value, Color.BLUE.name, Color.BOTH.value, Color.RED.nice, Color.default()

    def look_up(x):
        found = (
            *(Color(1), Color["BLUE"], Color((1, 2)), Level(2), Mode(3), getattr(Color, "RED")),
            getattr(Color, "NO", None),
        )
        try:
            return Color(99), x
        except ValueError:
            pass
        try:
            return Color["NO"], x
        except KeyError:
            return x + 1, found

    def iteration(x):
        names = {color.name: color for color in Color}, list(Color.__members__), Color.__members__["RED"]
        made = x + 1, list(Color), [c.value for c in Color], len(Color)
        return *made, Color.RED in Color, list(reversed(Color)), names

    def numbers(x):
        order = Level.LOW < Level.HIGH, max(Level), Level.LOW == 1, int(Level.HIGH)
        return Level.LOW + 1, x * Level.HIGH, [10, 20, 30][Level.LOW], x[Level.HIGH], order, x.sum(Level.LOW - 1)

    def flags(x):
        both = Mode.X | Mode.Y
        names = list(both), both.value, (IntMode.X | IntMode.Y), IntMode.X | 4
        if Mode.X in both:
            x = x + 1
        return x, both & Mode.X, ~Mode.X, Mode.X ^ Mode.Y, bool(Mode.X & Mode.Y), names

    def texts(x):
        formatted = f"{StrictText.A}", str(StrictText.B), str(Color.RED), repr(Color.RED), f"{Color.RED}"
        return x + 1, Text.A == "a", Text.B.upper(), StrictText.A + "x", formatted

    @programs(lambda: (vector(), {Color.RED: vector(), Color.BLUE: 2}))
    def keys(x, table):
        table[Color.BOTH] = x
        made = {Color.RED: x, Level.LOW: 3}
        return table[Color.RED] + table[Color.BLUE], made[Color.RED], made[1], {Color.RED, Color.RED} == {Color.RED}

    @programs(
        *[lambda color=color: (vector(), color) for color in (Color.RED, Color.BLUE, Color.RED)], graphs=2, recompiles=1
    )
    def matched(x, color):
        match color:
            case Color.RED:
                return x + 1, color is Color.RED
            case Color.BLUE:
                return x - 1, color is Color(1)

    def classes(x):
        checks = isinstance(Color.RED, Color), isinstance(Level.LOW, int)
        checks += type(Color.RED) is Color, issubclass(Level, int)
        made = x + 1, checks, hash(Color.RED) == hash(Color.RED), Color.RED != Color.BLUE
        return *made, Color.RED is Color(1), Color.__name__

    def look_up_by_keyword(x):
        found = Color(value=1), Level(value=2), Mode(value=3), Planet(value=(3, 4.0)), StrictText("b")
        try:
            return Color(value=99), x
        except ValueError as error:
            return x + 1, found, str(error)

    def arithmetic_of_flags(x):
        mode = Mode.X
        mode |= Mode.Z
        mixed = IntMode.X + IntMode.Y, IntMode.X << 1, 3 | IntMode.X, -IntMode.Y, IntMode(16), ~IntMode.X, IntMode.Y * 2
        facts = mode is Mode(5), mode.name, len(mode), Mode.Y in mode, not Mode(0), repr(mode), [*mode]
        return x * mode.value + (IntMode.X | IntMode.Y), mixed, facts, mode ^ Mode.X, mode & ~Mode.X

    def attributes_that_are_not_there(x):
        LOOKED.clear()
        found = Asking.A.is_a, Asking.A.is_b, hasattr(Asking.B, "z"), getattr(Asking.B, "failing", 0), Asking.B.value
        return x * Asking.A.is_a, found, [*LOOKED]

    @programs(breaks=1)
    def own_getattribute(x):
        LOOKED.clear()
        y = x * Guarding.A.value
        return y, LOOKED.index("value")


@pytest.mark.parametrize("program", rows_of(OtherValues))
def test_enums_that_are_asked_for_other_values(program):
    expected, found = histories(program)
    assert found == expected


def test_members_and_values_of_own_classes_are_called():
    members = [lambda each=each: (each, Affine((2, 3)), torch.randn(3)) for each in Activation]
    assert_same_as_eager(calls_members, *members, *members, graphs=2)


def test_another_call_of_such_a_class_is_noticed(monkeypatch):
    compiled = minidynamo.compile(calls_members, backend="eager", fullgraph=True)
    given = Activation.RELU, Affine((2, 3)), torch.randn(3)
    compiled(*given)
    monkeypatch.setattr(Activation, "__call__", lambda self, x, factor=1: x - factor)
    torch.testing.assert_close(compiled(*given), calls_members(*given))
    monkeypatch.setattr(Affine, "__call__", lambda self, x: x - self[0])
    torch.testing.assert_close(compiled(*given), calls_members(*given))


def test_enums_that_are_made_by_a_call():
    @minidynamo.compile(backend="eager")
    def made(x):
        shape = enum.Enum("shape", "ROUND FLAT")
        return x + shape.FLAT.value, shape

    for function in (made.__wrapped__, made):
        (y, one), (_, other) = function(torch.ones(3)), function(torch.ones(3))
        assert torch.equal(y, torch.full((3,), 3.0))
        assert one is not other and one.__module__ == __name__ and [*one.__members__] == ["ROUND", "FLAT"]


def test_texts_that_look_elsewhere(monkeypatch):
    @minidynamo.compile(backend="eager", fullgraph=True)
    def say(x):
        return x, f"{Asking.A:>4}|{Asking.B}"

    assert say(torch.ones(1))[1] == " one|two"
    monkeypatch.setitem(WORDS, 2, "deux")
    assert say(torch.ones(1))[1] == " one|deux"
