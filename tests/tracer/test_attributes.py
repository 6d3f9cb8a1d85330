# Programs are written as users write them, not as a linter would.
# ruff: noqa: B009, B010, RUF012, UP008

import collections
import enum

import pytest
import torch

import minidynamo
from minidynamo.guards.guard import GuardKind
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capture import capture, guards_on

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class Both:
    """A data descriptor, written in Python."""

    def __get__(self, obj, cls):
        return obj.stored * 2

    def __set__(self, obj, value):
        obj.stored = value + 1


class Read:
    def __get__(self, obj, cls):
        return 7


class Thing:
    shared = 3
    both = Both()
    read = Read()
    made = [1, 2]

    def __init__(self, x):
        self.x = x

    @property
    def twice(self):
        return self.x * 2

    @twice.setter
    def twice(self, value):
        self.x = value / 2

    @staticmethod
    def static(a):
        return a + 1

    @classmethod
    def of(cls, x):
        return cls(x * cls.shared)

    def method(self, a=1):
        return self.x + a


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Lazy:
    def __getattr__(self, name):
        if name.startswith("x"):
            return len(name)
        raise AttributeError(name)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Pair = collections.namedtuple("Pair", "left right")


@programs(lambda: (vector(), Thing(vector())))
def order_of_lookup(x, t):
    t.read_too = 1
    t.both = 4
    t.twice = x
    return t.x, t.twice, t.shared, t.both, t.read, t.made[0], t.static(1), t.of(x).x, t.method(2), t.read_too


@programs(lambda: (vector(), Thing(vector())), graphs=0)
def instance_before_class(x, t):
    t.shared = 9
    t.method = lambda: x
    a = t.shared, t.method()
    del t.shared
    return a, t.shared


@programs(lambda: (vector(), Slotted(1)))
def slots(x, s):
    s.b = x * s.a
    s.a = 2
    return s.b + s.a


@programs(lambda: (vector(), Lazy()))
def computed_attributes(x, lazy):
    return x + lazy.xyz, getattr(lazy, "xx", None)


@programs(lambda: (vector(), Thing(1)))
def questions(x, t):
    setattr(t, "new", x)
    return hasattr(t, "new"), hasattr(t, "nope"), getattr(t, "nope", 5), getattr(t, "x"), t.__class__ is Thing, x + 1


@programs(graphs=0, breaks=None)
def missing_attribute_raises(x):
    return Thing(1).nope


@programs()
def members_and_fields(x):
    p = Pair(x, Color.RED)
    top = x.topk(2)
    return p.left + top.values[0], p.right.name, p.right.value, p.right is Color.RED, top.indices, Color["BLUE"]


@programs()
def functions_and_classes(x):
    def inner():
        return x

    inner.note = 4
    return inner.__name__, inner.note, Thing.__name__, Thing.shared, Thing.method(Thing(x)), inner() + 1


class Base:
    def scale(self, x):
        return x * 2

    @classmethod
    def make(cls):
        return cls()


class Derived(Base):
    def scale(self, x):
        return super().scale(x) + super(Derived, self).scale(1)

    @classmethod
    def make(cls):
        return super().make()


@programs()
def methods_of_the_super_class(x):
    return Derived.make().scale(x)


def test_what_was_found_and_what_was_not_is_guarded():
    def read(t):
        return t.x + t.shared + t.method() + hasattr(t, "nope")

    traced = capture(read, Thing(torch.ones(2)))
    kinds = {(g.kind, g.expected) for g in traced.guards if isinstance(g.expected, str)}
    assert (GuardKind.NO_INSTANCE_ATTR, "shared") in kinds
    assert (GuardKind.NO_INSTANCE_ATTR, "method") in kinds
    assert (GuardKind.MISSING_ATTR, "nope") in kinds
    names = {g.expected[0] for g in traced.guards if g.kind is GuardKind.CLASS_ATTR}
    assert names == {"shared", "method"}
    assert GuardKind.TENSOR in guards_on(traced, "t.x")


def test_library_classes_are_not_guarded():
    model = torch.nn.Linear(2, 2)
    traced = capture(lambda m, x: m(x), model, torch.ones(2, 2))
    assert not [g for g in traced.guards if g.kind is GuardKind.CLASS_ATTR]
    assert GuardKind.TENSOR in guards_on(traced, "m.weight")


def test_attributes_of_operators_are_not_denied():
    def f(x):
        return x + 1 if hasattr(torch.ops.aten.sin.default, "_schema") else x

    assert minidynamo.compile(f, backend="eager")(torch.ones(1)).item() == 2
