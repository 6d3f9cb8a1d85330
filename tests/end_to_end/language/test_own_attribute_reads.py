"""Classes that override every attribute read: only the program itself reads attributes of their objects."""

import collections.abc
import copy
import dataclasses

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of

# Results of a metaclass cannot be traced, which triggers a notice.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")

READS: list[str] = []


class Noting:
    v = 3

    def __getattribute__(self, name):
        READS.append(name)
        return object.__getattribute__(self, name)


class Key(Noting):
    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


class Pretending:
    @property
    def __class__(self):
        READS.append("class")
        return int


class Number(Noting):
    def __index__(self):
        return 1

    def __add__(self, other):
        return 7

    def __iter__(self):
        return iter([1, 2])

    def __len__(self):
        return 2

    def __bool__(self):
        return False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True


class NotingClass(type):
    def __getattribute__(cls, name):
        READS.append(name)
        return type.__getattribute__(cls, name)


class Noted(metaclass=NotingClass):
    w = 4


class NotingError(Exception):
    def __getattribute__(self, name):
        READS.append(name)
        return Exception.__getattribute__(self, name)


@dataclasses.dataclass
class Record(Noting):
    a: int = 1


class Holder:
    held = Noting()


KEY, NUMBER, RECORD = Noting(), Number(), Record(2)
TABLE, ELEMENTS = {KEY: 2, "a": 3}, {KEY, "a"}


class Cases:
    def matched(x, o):
        match o:
            case str():
                return x
            case Noting(v=3):
                return x + 1
            case _:
                return x + 2

    def forgotten(x, o):
        kept = o
        del o
        return x + 1, [kept]

    def around_a_break(x, o):
        kept = [o, copy.copy(o)]
        return x + 1, kept

    def checked(x, o):
        return x + isinstance(o, int), isinstance(o, Noting), isinstance(o, (str, collections.abc.Mapping)), callable(o)

    def keyed(x, o):
        return x + len(TABLE), [*TABLE], [*TABLE.values()], [type(k) for k in ELEMENTS if k is KEY], KEY in TABLE

    def on_a_class(x, o, default=KEY):
        return x + 1, Holder.held.v, Holder().held, default, o

    def operators(x, o):
        with NUMBER as entered:
            x = x + NUMBER.__index__()
        items = [0]
        items.extend(NUMBER)
        return x + [5, 6][NUMBER], NUMBER + 1, [*NUMBER], len(NUMBER), not NUMBER, sum(NUMBER), items, entered

    def records(x, o):
        return x + 1, dataclasses.asdict(RECORD), dataclasses.astuple(RECORD), dataclasses.replace(RECORD, a=4).a

    def metaclasses(x, o):
        return x + Noted.w, isinstance(o, Noted), isinstance(Noted(), Noted)

    def errors(x, o):
        try:
            raise NotingError(1)
        except NotingError as error:
            return x + 1, str(error), error.args


@pytest.mark.parametrize("make", [Noting, Key, Pretending])
@pytest.mark.parametrize(
    "program",
    rows_of(Cases),
)
def test_what_is_asked_for_is_as_in_eager(program, make):
    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        reads = []
        for function in (program, compiled):
            READS.clear()
            function(torch.ones(2), make())
            reads.append([*READS])
        assert reads[1] == reads[0]
