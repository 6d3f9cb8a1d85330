"""Dataclasses and namedtuples: created, read, changed and returned while tracing."""

import collections
import dataclasses
import typing
from dataclasses import dataclass, field

import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


@dataclass
class Base:
    a: int
    b: float = 2.0
    xs: list = field(default_factory=list)

    def __post_init__(self):
        self.c = self.a * 2


@dataclass
class Derived(Base):
    d: str = "q"


@dataclass(frozen=True)
class Frozen:
    x: object
    n: int = 1


@dataclass(slots=True)
class Slotted:
    x: object
    n: int = 1


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    x: object
    n: int = 1


@dataclass(order=True)
class Ordered:
    n: int
    m: int = 0


@dataclass(unsafe_hash=True)
class Hashed:
    n: int


@dataclass(frozen=True)
class Key:
    name: str
    size: int


@dataclass(kw_only=True)
class Keywords:
    n: int
    m: int = 3


@dataclass
class WithInitVar:
    n: int
    start: dataclasses.InitVar[int] = 3
    w: int = field(init=False)

    def __post_init__(self, start):
        self.w = start + self.n


@dataclass
class Nested:
    p: Base
    items: list
    table: dict
    hidden: int = field(default=5, repr=False, compare=False)


class Point(typing.NamedTuple):
    a: object
    b: int = 3

    def total(self):
        return self.a + self.b

    @property
    def twice(self):
        return self.b * 2


Pair = collections.namedtuple("Pair", "a b", defaults=[5])


class SubPair(Pair):
    __slots__ = ()

    def total(self):
        return self.a + self.b


@programs()
class Cases:
    init_only_arguments = lambda x: (WithInitVar(1, 5), x * WithInitVar(2).w, Keywords(n=3).m)

    def made_here(x):
        made = Derived(1, xs=[x + 1]), Frozen(x, n=3).x * 2, Slotted(x, 2), FrozenSlotted(x, 2)
        return *made, Keywords(n=2), Ordered(3)

    @programs(lambda: (vector(), FrozenSlotted(vector(), 2), Slotted(vector(), 2)))
    def slotted_arguments(x, frozen, slotted):
        slotted.n += 1
        slotted.x = x
        return frozen.x + x * frozen.n, slotted.x * slotted.n

    def frozen_ones_refuse(x):
        try:
            Frozen(x).n = 3
        except dataclasses.FrozenInstanceError:
            return x + 1
        return x

    def replaced(x):
        made = dataclasses.replace(Frozen(x + 1), n=7), dataclasses.replace(Derived(3), d="z")
        return *made, dataclasses.replace(Ordered(1))

    def order_and_equality(x):
        compared = Ordered(1) < Ordered(2), Ordered(1, 2) >= Ordered(1, 1), Ordered(1) == Ordered(1, 0), Ordered(1) != 3
        return x + 1, compared, sorted([Ordered(3), Ordered(1)]), max(Ordered(1), Ordered(5)).n, Base(1) == Derived(1)

    def keys(x):
        table = {Hashed(1): x, Hashed(2): x + 1, Key("a", 1): 3}
        table[Key("a", 1)] += 1
        made = table[Hashed(1)] + 1, Hashed(2) in table, len({Hashed(1), Hashed(1)})
        return *made, table[Key("a", 1)], Key("b", 1) in table

    @programs(lambda: (vector(), Nested(Base(1), [1, (2, Base(2))], {"k": Base(3)})))
    def as_plain_containers(x, nested):
        made = Nested(Base(1), [Base(2)], {"k": 3})
        found = x + 1, dataclasses.asdict(nested), dataclasses.astuple(nested)
        return *found, dataclasses.asdict(made), dataclasses.asdict

    @programs(lambda: (vector(), Derived(2)))
    def fields(x, derived):
        names = [f.name for f in dataclasses.fields(Base)], [f.name for f in dataclasses.fields(derived)]
        for f in dataclasses.fields(derived):
            value = getattr(derived, f.name)
            if isinstance(value, (int, float)):
                x = x * value
        return x, names, dataclasses.is_dataclass(Base), dataclasses.is_dataclass(derived), dataclasses.is_dataclass(x)

    def written_as_text(x):
        return x + 1, repr(Base(1)), str(Derived(2)), f"{Keywords(n=1)}", repr(Nested(Base(1), [Base(2)], {}))

    @programs(breaks=None, graphs=None)
    def containing_itself(x):
        nested = Nested(Base(1), [], {})
        nested.items.append(nested)
        return x + 1, repr(nested)

    @programs(lambda: (vector(), Derived(3)), lambda: (vector(), Derived(3, b=1.5)), graphs=1, recompiles=0)
    def changed_argument(x, derived):
        derived.a += 1
        derived.xs.append(x * derived.c)
        derived.new = derived.c
        return derived

    @programs(lambda: (vector(), Derived(3)), lambda: (vector(), Derived(4)), graphs=2, recompiles=1)
    def read_fields_are_guarded(x, derived):
        return x * derived.a

    @programs(lambda: (vector(), Ordered(3)))
    def matched(x, ordered):
        match ordered:
            case Ordered(n=3, m=m):
                x = x + m + 1
        match ordered:
            case Ordered(n, m):
                return x + n + m
        return x

    def namedtuples(x):
        point = Point(x)
        first, second = Pair(x, 2)
        made = Point._make([x, 2]), Pair(b=1, a=x), Pair(x), SubPair(x, 2), SubPair(x, 2)._replace(b=3)
        found = point, point.total(), point.twice, point[0], point[-1]
        return *found, len(point), first * second, made, SubPair(x, 1).total()

    def namedtuples_as_tuples(x):
        point = Point(x)._replace(b=9)
        fields = Point._fields, point._fields, Pair._field_defaults, hasattr(point, "_fields"), isinstance(point, tuple)
        equal = Pair(1, 2) == Pair(1, 2), Pair(1, 2) == (1, 2)
        equal += Pair(1, 2) < Pair(1, 3), hash(Pair(1, 2)) == hash((1, 2))
        text = (
            *(repr(Pair(1, 2)), str(Point(1)), Pair(1, 2).index(2), Pair(1, 2).count(1), tuple(Pair(1, 2))),
            [*Pair(1, 2)],
        )
        return point._asdict(), fields, equal, {Pair(1, 2): 3}[1, 2], text, x + 1

    @programs(lambda: (vector(), SubPair(vector(), 1), Point(vector(), 1)))
    def namedtuple_arguments(x, pair, point):
        match point:
            case Point(a=a, b=1):
                x = x + a
        return pair.total() + x, pair, pair[0], point.total(), point.twice, point + (1,), point[:1], point * 2


def test_a_replaced_method_is_noticed():
    @dataclass
    class Late:
        n: int

        def scaled(self, x):
            return x * self.n

    f = lambda x, late: late.scaled(x)
    compiled = minidynamo.compile(f, backend="eager")
    one = torch.ones(2)
    assert torch.equal(compiled(one, Late(2)), one * 2)
    Late.scaled = lambda self, x: x - self.n
    assert torch.equal(compiled(one, Late(2)), one - 2)
    Late.__getattribute__ = lambda self, name: lambda x: x * 9
    assert torch.equal(compiled(one, Late(2)), one * 9)
