"""Enums whose class changes after the compile: operators, hashes and texts of the program's own."""

from __future__ import annotations

import enum

import pytest
import torch

import minidynamo


def make_enums():
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    class Mode(enum.Flag):
        X = 1
        Y = 2

    class Own(enum.Enum):
        RED = 1
        BLUE = 2

        def __eq__(self, other):
            return self is other

        def __hash__(self):
            return 1

        def __bool__(self):
            return True

        def __str__(self):
            return "own"

        def __lt__(self, other):
            return self.value < other.value

        def __add__(self, other):
            return self.value + 10

    return Color, Level, Mode, Own


def equal(x, enum):
    first, second = enum
    return x + 1 if first == second else x


def unequal(x, enum):
    first, second = enum
    return x + 1 if first != second else x


def contained(x, enum):
    first, second = enum
    return x + 1 if first in (second, 5) else x


def contained_in_list(x, enum):
    first, second = enum
    return x + 1 if first in [3, second] else x


def a_key(x, enum):
    first, second = enum
    return x * {first: 5}.get(second, 0)


def true(x, enum):
    first, _ = enum
    return x + 1 if first else x


def hashed(x, enum):
    first, _ = enum
    return x + hash(first) % 7


def text(x, enum):
    first, _ = enum
    return x + len(str(first)) + len(f"{first}") * 100


def ordered(x, enum):
    first, second = enum
    try:
        return x + 1 if first < second else x
    except TypeError:
        return x - 1


def added(x, enum):
    first, second = enum
    try:
        return x + (first + second)
    except TypeError:
        return x - 1


def joined(x, enum):
    first, second = enum
    try:
        return x + 1 if first & second else x
    except TypeError:
        return x - 1


CHANGES = {
    equal: ("__eq__", lambda self, other: True),
    unequal: ("__ne__", lambda self, other: False),
    contained: ("__eq__", lambda self, other: True),
    contained_in_list: ("__eq__", lambda self, other: True),
    a_key: ("__hash__", lambda self: 3),
    true: ("__bool__", lambda self: False),
    hashed: ("__hash__", lambda self: 3),
    text: ("__str__", lambda self: "a long text"),
    ordered: ("__lt__", lambda self, other: False),
    added: ("__add__", lambda self, other: 40),
    joined: ("__and__", lambda self, other: self),
}


@pytest.mark.parametrize("which", range(4), ids=["enum", "int", "flag", "own"])
@pytest.mark.parametrize("program", CHANGES)
def test_a_changed_operation_is_noticed(program, which):
    enum_class = make_enums()[which]
    compiled = minidynamo.compile(program, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x, enum_class), program(x, enum_class))
    name, changed = CHANGES[program]
    setattr(enum_class, name, changed)
    for _ in range(2):
        assert torch.equal(compiled(x, enum_class), program(x, enum_class))
    assert compiled.stats.compiles >= 2


def test_code_of_an_enum_is_traced_not_run():
    seen, limit = [], [1]

    class Watched(enum.Enum):
        RED = 1
        BLUE = 2

        def __eq__(self, other):
            seen.append(self.name)
            return self.value > limit[0]

        __hash__ = enum.Enum.__hash__

    def program(x):
        return x + 1 if Watched.BLUE == Watched.RED else x  # noqa: SIM300

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == compiled(torch.ones(1)).item() == 2 and seen == ["BLUE"] * 2
    limit[0] = 2
    assert compiled(torch.ones(1)).item() == 1 and seen == ["BLUE"] * 3
