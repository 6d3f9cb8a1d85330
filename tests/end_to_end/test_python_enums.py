"""Enums: members, values, names, look-up, arithmetic, and as keys."""

# Programs are written as users write them, not as a linter would.
# ruff: noqa: SIM300, UP042

import enum

import pytest

from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


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


class Planet(enum.Enum):
    EARTH = (1, 2.0)
    MARS = (3, 4.0)

    def __init__(self, n, size):
        self.n = n
        self.size = size


@programs()
def members(x):
    return x + 1, Color.RED, Color.RED.value, Color.BLUE.name, Color.BOTH.value, Color.RED.nice, Color.default()


@programs()
def look_up(x):
    found = Color(1), Color["BLUE"], Color((1, 2)), Level(2), Mode(3), getattr(Color, "RED"), getattr(Color, "NO", None)
    try:
        return Color(99), x
    except ValueError:
        pass
    try:
        return Color["NO"], x
    except KeyError:
        return x + 1, found


@programs()
def iteration(x):
    names = {color.name: color for color in Color}, list(Color.__members__), Color.__members__["RED"]
    return x + 1, list(Color), [c.value for c in Color], len(Color), Color.RED in Color, list(reversed(Color)), names


@programs()
def numbers(x):
    order = Level.LOW < Level.HIGH, max(Level), Level.LOW == 1, int(Level.HIGH)
    return Level.LOW + 1, x * Level.HIGH, [10, 20, 30][Level.LOW], x[Level.HIGH], order, x.sum(Level.LOW - 1)


@programs()
def flags(x):
    both = Mode.X | Mode.Y
    names = list(both), both.value, (IntMode.X | IntMode.Y), IntMode.X | 4
    if Mode.X in both:
        x = x + 1
    return x, both & Mode.X, ~Mode.X, Mode.X ^ Mode.Y, bool(Mode.X & Mode.Y), names


@programs()
def texts(x):
    formatted = f"{StrictText.A}", str(StrictText.B), str(Color.RED), repr(Color.RED), f"{Color.RED}"
    return x + 1, Text.A == "a", Text.B.upper(), StrictText.A + "x", formatted


@programs()
def attributes(x):
    return x * Planet.MARS.n, Planet.EARTH.size


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


@programs()
def classes(x):
    checks = isinstance(Color.RED, Color), isinstance(Level.LOW, int), type(Color.RED) is Color, issubclass(Level, int)
    return (
        x + 1,
        checks,
        hash(Color.RED) == hash(Color.RED),
        Color.RED != Color.BLUE,
        Color.RED is Color(1),
        Color.__name__,
    )
