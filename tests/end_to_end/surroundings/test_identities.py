"""`is` answers as in eager: for computed numbers and texts, and for objects that are two in the first call and one in
the next."""

from __future__ import annotations

import operator

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of

# A frame that reads the identity of computed numbers runs eagerly, with a notice.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")

X = torch.ones(300, 3)


class Box:
    pass


def sliced(x, items):
    return x + 1, items[:2], items[:2] is items, items[1:]


@pytest.mark.parametrize("lengths", [(3, 2, 3), (2, 3, 4, 2), (1, 2)])
def test_slices_of_tuples_that_are_given(lengths):
    compiled = minidynamo.compile(sliced, backend="eager")
    for length in lengths:
        items = tuple(range(1000, 1000 + length))
        for expected, found in zip(sliced(X, items)[1:], compiled(X, items)[1:]):
            assert found == expected and (found is items) == (expected is items)


@pytest.mark.parametrize("make", [lambda: torch.device("cpu"), lambda: range(3), lambda: 2j, lambda: torch.finfo()])
def test_an_equal_object_is_not_taken_for_the_one_that_is_given(make):
    compiled = minidynamo.compile(lambda x, value: (x + 1, value, value == make()), backend="eager")
    for value in (make(), make()):
        assert compiled(X, value)[1] is value


# A frame that runs eagerly triggers a notice.

PROGRAMS = {
    "abs": lambda x, n: (x + n, abs(n) is n),
    "product": lambda x, n: (x + n, n * 1 is n),
    "sum": lambda x, n: (x + n, n + 0 is n, 0 + n is n),
    "plus": lambda x, n: (x + n, +n is n),
    "power": lambda x, n: (x + n, n**1 is n),
    "quotient": lambda x, n: (x + n, n // 1 is n, divmod(n, 1)[0] is n),
    "twice": lambda x, n: (x + n, n + 1000 is n + 1000),
    "chosen": lambda x, n: (x + n, max(n, 3) is n, min(n, 10**6) is n),
    "converted": lambda x, n: (x + n, int(n) is n, round(n) is n, n.__int__() is n, operator.index(n) is n),
    "index": lambda x, n: (x + n, operator.index(n) is operator.index(n)),
    "bits": lambda x, n: (x + n, (n | 0) is n, (n << 0) is n, (n >> 0) is n),
    "size": lambda x, n: (x + n, x.size(0) + n is n + x.size(0)),
    "one id": lambda x, n: (x + n, id(n) == id(n)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_identity_of_numbers_that_change(name, dynamic):
    inputs = [lambda n=n: (torch.ones(3), n) for n in (1000, 2000, 3001, 5)]
    assert_same_as_eager(PROGRAMS[name], *inputs, dynamic=dynamic)


@pytest.mark.parametrize("name", ["abs", "product", "sum", "plus", "chosen"])
def test_identity_of_floats_that_change(name):
    inputs = [lambda n=n: (torch.ones(3), n) for n in (1000.5, 2000.5, 2.25)]
    assert_same_as_eager(PROGRAMS[name], *inputs)


class Made:
    pass


def of_made(x):
    return x + 1, id(Made()) == id(Made()), id([]) == id([])


def of_tensors(x):
    return x + 1, id(x + 1) == id(x + 2)


def of_bound_again(x):
    a = Made()
    first = id(a)
    del a
    b = Made()
    return x + 1, first == id(b)


def of_living(x):
    made, tensors = [Made(), Made()], (x + 1, x + 2)
    seen = {id(each) for each in (*made, *tensors, *made)}
    return tensors, len(seen), id(made[0]) == id(made[1])


def of_a_constant(x):
    return x + 1, id(None) == id(None)


@pytest.mark.parametrize("fn", [of_made, of_tensors, of_bound_again, of_living, of_a_constant])
def test_addresses_of_new_objects_are_left_to_python(fn):
    """Some of the answers depend on the allocator, in eager, too."""
    compiled = minidynamo.compile(fn, backend="eager", dynamic=True)
    found = compiled(torch.ones(3))
    assert fn not in (of_living, of_a_constant) or str(found) == str(fn(torch.ones(3)))
    assert "MD233 graph break: `id` of a new object or a constant" in compiled.breaks()


NAN = float("nan")


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, a: (x * a, (a,) == (NAN,), [a] == [NAN], a in (1.5, NAN)),
        lambda x, a: (x * 1, {a: 1}.get(NAN), {NAN: 1}.get(a), NAN in {a}),
        lambda x, a: (x * 1, a == NAN, a != a, [1.5, NAN, a].count(a)),
    ],
)
def test_a_nan_is_found_as_the_object_that_it_is(program, dynamic):
    compiled = minidynamo.compile(program, backend="eager", dynamic=dynamic, recompile_limit=20)
    for a in (0.5, 1.5, NAN, float("nan"), 2.5, NAN):
        assert str(compiled(torch.ones(2), a)) == str(program(torch.ones(2), a))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, a, b: (x * a, (a,) == (b,), [1, a] != [1, b], {"k": a} == {"k": b}, ((a,),) == ((b,),)),
        lambda x, a, b: (x * a, a in [b], a not in (b, 1.5), [a].count(b), (a, 1) < (b, 2), a == b),
        lambda x, a, b: (x * a, (a * 1,) == (a * 1,), [a, b].count(a), (a,) == (b,)),
    ],
)
def test_two_floats_that_become_one_nan(program, dynamic):
    compiled = minidynamo.compile(program, backend="eager", dynamic=dynamic, recompile_limit=20)
    for a, b in ((0.5, 1.5), (1.25, 3.5), (2.0, 7.0), (NAN, NAN), (NAN, float("nan")), (3.0, 3.0), (NAN, 2.0)):
        assert str(compiled(torch.ones(2), a, b)) == str(program(torch.ones(2), a, b))


def pair():
    return torch.ones(3), torch.arange(3.0)


def twice():
    x = torch.ones(3)
    return x, x


class Cases:
    def is_one(a, b):
        return a is b, a + 1

    def is_not_one(a, b):
        return a is not b, b + 1

    def two_keys(a, b):
        return len({a: 1, b: 2}), len({a, b}), a + b

    def writes(a, b):
        a.add_(1)
        return a + b


@pytest.mark.parametrize("program", rows_of(Cases))
def test_tensors_that_become_one(program):
    assert_same_as_eager(program, pair, twice, pair, backward=False, recompiles=1)


@pytest.mark.parametrize("program", [lambda p, q, x: (p is q, x + 1), lambda p, q, x: (p == q, q != p, x + 1)])
def test_objects_that_become_one(program):
    box = Box()
    compiled = minidynamo.compile(program, backend="eager")
    x = torch.ones(2)
    for p, q in ((box, Box()), (box, box), (Box(), Box())):
        assert compiled(p, q, x)[:-1] == program(p, q, x)[:-1]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)


class Reads(Net):
    def forward(self, x):
        return self.second(self.first(x))


class Compares(Net):
    def forward(self, x):
        return self.second(self.first(x)) * (2 if self.first.weight is self.second.weight else 1)


class Collects(Net):
    def forward(self, x):
        return self.second(self.first(x)) * len({*self.parameters()})


class Writes(Net):
    def forward(self, x):
        with torch.no_grad():
            self.first.weight.mul_(0.5)
        return self.second(self.first(x))


class WritesThroughData(Net):
    def forward(self, x):
        self.first.weight.data.mul_(0.5)
        return self.second(self.first(x))


class ResetsGradients(Net):
    def forward(self, x):
        y = self.second(self.first(x))
        self.first.weight.grad = None
        return y


@pytest.mark.parametrize("cls", [Reads, Compares, Collects, Writes, WritesThroughData, ResetsGradients])
def test_parameters_that_become_one(cls):
    torch.manual_seed(0)
    net, x = cls(), torch.randn(2, 3)
    twin = cls()
    twin.load_state_dict(net.state_dict())
    compiled = minidynamo.compile(net, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(x), twin(x))
    for each in (compiled, twin):
        each.second.weight = each.first.weight
    for _ in range(2):
        assert torch.equal(compiled(x), twin(x))
    for each in (compiled, twin):
        each(x).sum().backward()
    if cls is not ResetsGradients:
        assert torch.equal(compiled.first.weight.grad, twin.first.weight.grad)


TEXT = "a text of the code"


class EqualValues:
    def same(x, a, b):
        return x + 1 if a is b else x

    def not_same(x, a, b):
        return x + 1 if a is not b else x

    def same_as_global(x, a, b):
        return x + 1 if a is TEXT else x

    def computed_and_given(x, a, b):
        return x + 1 if a + b is a else x

    def copied(x, a, b):
        return x + 1 if a is (a if b else a + a) else x

    def in_lists(x, a, b):
        first, second = [a], (b,)
        return x + 1 if first[0] is second[0] else x


def again(value):
    """Returns an equal, distinct object."""
    return value[:1] + value[1:] if isinstance(value, str) else value + 0


VALUES = [10_000, 2.5, TEXT, "other text", 7, "x"]


@pytest.mark.filterwarnings("ignore:MD230")  # only Python knows the identities of computed numbers
@pytest.mark.parametrize("program", rows_of(EqualValues))
@pytest.mark.parametrize("value", VALUES)
def test_objects_are_told_apart(program, value):
    compiled = minidynamo.compile(program, backend="eager", recompile_limit=20)
    x, other = torch.ones(2), again(value)
    third = value + value
    calls = [(value, value), (value, other), (other, value), (other, other), (value, third), (third, value)]
    for a, b in [*calls, *reversed(calls)]:
        assert torch.equal(compiled(x, a, b), program(x, a, b)), (a, b)
