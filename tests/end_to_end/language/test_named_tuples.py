"""Namedtuples, and subclasses with their own attributes or special methods."""

import collections
import copy
import typing

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, rows_of, vector

programs = Programs()
test_same_as_eager = programs.test()


class Options(collections.namedtuple("Options", "a b")):
    scale = 1.0
    calls = 0

    @property
    def total(self):
        return self.a + self.b


class Row(tuple):
    scale = 1.0
    calls = 0


class Result(typing.NamedTuple):
    out: torch.Tensor
    aux: torch.Tensor


class Tagged(Result):
    scale = 1.0
    calls = 0


def made(cls, **attributes):
    value = cls((1, 2)) if cls is Row else cls(1, 2)
    vars(value).update(attributes)
    return value


def state(value):
    return tuple.__repr__(value), dict(vars(value))


def read(x, p):
    return x * p.scale + p[0]


def count(x, p):
    p.calls += 1
    return x * p.calls


class Cases:
    def read_or(x, p):
        return x * getattr(p, "extra", 7), hasattr(p, "extra")

    def set_and_return(x, p):
        p.extra = x * 2
        return p

    def set_by_its_dict(x, p):
        p.__dict__["extra"] = 4.0
        vars(p).update(scale=3)
        return x * p.extra * p.scale, dict(p.__dict__)

    def set_and_delete(x, p):
        p.extra = 3
        del p.extra
        return x, vars(p)

    def copied(x, p):
        q = copy.copy(p)
        q.calls = p.calls + 9
        return x, q.calls, p.calls, dict(vars(q))


PROGRAMS = [*rows_of(Cases), read, count]


def write_a_field(x, p):
    p.a = 3
    return x


@programs()
class Attributes:
    def made_here(x):
        p = Options(1, x)
        p.scale = 4.0
        p.me = [x + 1]
        q = p._replace(a=7)
        q.calls += 1
        return p, vars(p), p.scale * x, q, vars(q), q.scale, p._asdict(), Options._make([3, 4]), p.b + p.a

    @programs(lambda: (vector(), vector()))
    def of_tensors(x, y):
        r = Tagged(x, y)
        r.scale = 3
        out, aux = r
        return r, torch.stack(r), torch.cat(r), out * r.scale, sum(r), [t + 1 for t in r], (*r, 1), r.aux - aux

    def as_an_index_and_sizes(x):
        return x.view(2, 2)[Options(0, 1)], torch.zeros(Options(2, 3)), x.reshape(Options(2, 2)).permute(Options(1, 0))


@pytest.mark.parametrize(
    "cls, backend, programs",
    [
        *((cls, "eager", PROGRAMS) for cls in (Options, Row, Tagged)),
        (Options, "aot_eager", PROGRAMS),
        (Options, "native", (read, count)),
    ],
)
def test_attributes_that_change_between_calls(cls, backend, programs):
    changes = ({}, {"extra": 3.0}, {"scale": 5.0}, {}, {"scale": 2.0, "calls": 4})
    for program in programs:
        compiled = minidynamo.compile(program, backend=backend)
        for k, attributes in enumerate(changes):
            for_eager, given = made(cls, **attributes), made(cls, **attributes)
            expected, actual = program(torch.ones(2) + k, for_eager), compiled(torch.ones(2) + k, given)
            assert (actual is given) == (expected is for_eager)
            assert repr(actual) == repr(expected), program
            assert repr(state(given)) == repr(state(for_eager)), program


def test_no_update_of_one_object_is_lost():
    for_eager, given = made(Options), made(Options)
    compiled = minidynamo.compile(count, backend="eager")
    for k in range(4):
        assert torch.equal(compiled(torch.ones(2), given), count(torch.ones(2), for_eager))
        assert given.calls == k + 1


def test_fields_cannot_be_written():
    compiled = minidynamo.compile(write_a_field, backend="eager")
    with pytest.raises(AttributeError, match="can't set attribute"):
        compiled(torch.ones(2), made(Options))


class Own(collections.namedtuple("Own", "a b")):
    """A namedtuple without attributes, but with special methods."""

    __slots__ = ()

    def __hash__(self):
        return 7

    def __len__(self):
        return 5

    def __iter__(self):
        return iter((10, 20))

    def __reversed__(self):
        return iter((1, 2, 3))

    def __getitem__(self, place):
        return 100

    def __contains__(self, item):
        return item == 99

    def __eq__(self, other):
        return True

    def __bool__(self):
        return False

    def __add__(self, other):
        return "added"

    def __radd__(self, other):
        return "added to"

    def __rmul__(self, other):
        return "multiplied"

    def __lt__(self, other):
        return "less"

    def __str__(self):
        return "text"

    def __format__(self, how):
        return "formatted" + how

    def __call__(self, number):
        return number * self.a


class OwnRow(tuple):
    __hash__ = Own.__hash__
    __len__ = Own.__len__
    __iter__ = Own.__iter__
    __reversed__ = Own.__reversed__
    __getitem__ = Own.__getitem__
    __contains__ = Own.__contains__
    __eq__ = Own.__eq__
    __bool__ = Own.__bool__
    __add__ = Own.__add__
    __radd__ = Own.__radd__
    __rmul__ = Own.__rmul__
    __lt__ = Own.__lt__
    __str__ = Own.__str__
    __format__ = Own.__format__
    a = 3

    def __call__(self, number):
        return number * self.a


class Unhashable(collections.namedtuple("Unhashable", "a b")):
    __slots__ = ()
    __hash__ = None


class Doubled(typing.NamedTuple):
    a: int
    b: int = 3

    def __add__(self, other):
        return Doubled(self.a + other.a, self.b + other.b)


def asked(p):
    first, second = p
    return (
        *(hash(p), len(p), list(p), tuple(p), [*p], first + second, list(reversed(p)), p[0], p[1], p.a),
        *(1 in p, 99 in p, p == (9, 9), (9, 9) == p, not p, p + (3,), (3,) + p, 2 * p, p < (9,)),  # noqa: RUF005, SIM300
        *(str(p), f"{p:x}", "%s" % (p,), p(4), sorted(p), sum(p), {7: 1}.get(p), isinstance(p, tuple)),  # noqa: UP031
        *(tuple.__len__(p), tuple.__getitem__(p, 0)),
    )


class OwnLength(collections.namedtuple("OwnLength", "a b")):
    def __iter__(self):
        return iter((10, 20))


LATER = {
    "__len__": (lambda self: 5, len),
    "__iter__": (lambda self: iter((7, 8)), lambda p: ([*p], tuple(p), sum(p))),
    "__eq__": (lambda self, other: "eq", lambda p: p == (1, 2)),
    "__hash__": (lambda self: 7, lambda p: {7: 1, (1, 2): 2}.get(p)),
    "__add__": (lambda self, other: "added", lambda p: p + (1,)),  # noqa: RUF005
    "__bool__": (lambda self: False, bool),
    "__contains__": (lambda self, item: True, lambda p: 9 in p),
    "__str__": (lambda self: "text", str),
    "__getattr__": (lambda self, name: name, lambda p: getattr(p, "scale", 0)),
    "scale": (3, lambda p: getattr(p, "scale", 0)),
}


@programs(lambda: (vector(), Own(1, 2)), lambda: (vector(), Own(4, 2)), graphs=2)
class SpecialMethods:
    special_methods_of_one_from_outside = lambda x, p: (x + 1, asked(p))

    @programs()
    def special_methods_of_one_made_here(x):
        return x + 1, asked(Own(1, 2))

    @programs(lambda: (vector(), OwnRow((1, 2))))
    def special_methods_of_a_tuple_class(x, p):
        return x + 1, asked(p), asked(OwnRow((3, 4)))

    @programs(lambda: (vector(), Doubled(1)))
    def an_operator_of_a_typed_one(x, p):
        return x * (p + Doubled(4, 5)).a, p + p

    @programs(lambda: (vector(), Unhashable(1, 2)))
    def hash_that_is_refused(x, p):
        try:
            return x, hash(p)
        except TypeError as error:
            return x + 1, str(error)

    @programs(lambda: (vector(), Doubled(1)), breaks=1, graphs=2)
    def one_that_answers_itself_is_read_by_torch_natively(x, p):
        y = x * 2
        return y + torch.tensor(OwnLength(1, 2)).sum() if hasattr(p, "a") else y


@pytest.mark.parametrize("name", LATER)
def test_a_method_that_comes_later(name):
    class Late(collections.namedtuple("Late", "a b")):
        __slots__ = ()

    value, ask = LATER[name]
    asked_one = lambda x, p: (ask(p), x + 1)
    compiled = assert_same_as_eager(asked_one, lambda: (vector(), Late(1, 2)))
    setattr(Late, name, value)
    assert compiled(torch.ones(1), Late(1, 2)) == asked_one(torch.ones(1), Late(1, 2))
    delattr(Late, name)
    assert compiled(torch.ones(1), Late(1, 2)) == asked_one(torch.ones(1), Late(1, 2))
