"""functools and operator in captured programs, and changes of the objects around the programs."""

import abc
import collections.abc
import functools
import operator
from functools import cached_property, partial, partialmethod, singledispatch, singledispatchmethod

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def scaled(x, a, b=1, *, c=0):
    return x * a + b - c


class Tagged(partial):
    def __new__(cls, function, *args, tag="none", **keywords):
        made = super().__new__(cls, function, *args, **keywords)
        made.tag = tag
        return made

    def __get__(self, instance, owner):
        return self if instance is None else partial(self, instance)


class Twice(partial):
    def __call__(self, *args, **keywords):
        return super().__call__(*args, **keywords) * 2


class Bare(partial):
    pass


TAGGED, TWICE = Tagged(scaled, b=3, tag="outside"), Twice(scaled, 2)


class Bound:
    scale = TAGGED


GLOBAL_PARTIAL = partial(scaled, a=2, b=4)


class Layer:
    def __init__(self, k=3):
        self.k = k
        self.computed = 0

    def apply(self, x, y=1, z=0):
        return x * self.k + y + z

    shifted = partialmethod(apply, y=10)

    @cached_property
    def gain(self):
        self.computed += 1
        return self.k * 2

    @singledispatchmethod
    def kind(self, value):
        return "anything"

    @kind.register
    def _(self, value: int):
        return value + self.k

    @kind.register
    def _(self, value: torch.Tensor):
        return value * self.k


@singledispatch
def combine(a, b):
    return a


@combine.register(int)
@combine.register(float)
def _(a, b):
    return a + b


@combine.register
def _(a: torch.Tensor, b):
    return a * b


@combine.register
def _(a: collections.abc.Sequence, b):
    return [combine(item, b) for item in a]


@functools.total_ordering
class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        return self.rank < other.rank


FIRST, RANK, TRIPLED = operator.itemgetter(0), operator.attrgetter("k"), operator.methodcaller("mul", 3)
CLAMPED = operator.methodcaller("clamp", min=0)


@programs()
class Cases:
    global_partial = lambda x: (GLOBAL_PARTIAL(x), GLOBAL_PARTIAL(x, c=1), GLOBAL_PARTIAL.keywords["a"])
    dispatch_on_classes = lambda x: (combine(x, 2), combine(True, 2), combine([x, 3.0, (x,)], 4), combine(None, 1))

    def nested_partials(x):
        inner = partial(scaled, x)
        outer = partial(partial(inner, 2, c=3), c=5)
        return outer(), outer(b=2, c=1), inner(1), outer.func is scaled, outer.args[1], outer.keywords["c"]

    def parts_of_partials(x):
        p = partial(scaled, 2, c=1)
        p.keywords["b"] = 5
        p.keywords.pop("c")
        q = partial(p, c=3)
        return p(x[0]) + x, q(x), p.keywords, p.args is p.args, p.args, q.args, p.func is q.func, dict(q.keywords)

    @programs(lambda: (vector(), partial(scaled, b=2)))
    def partial_from_outside(x, p):
        p.keywords["c"] = 4
        y = p(x, 3)
        del p.keywords["b"]
        return y + p(x, 3), p.keywords

    def subclasses_of_partial(x):
        made, bare = Tagged(scaled, x, tag="made"), Bare(scaled, x)
        assert isinstance(TAGGED, partial) and Bound.scale is TAGGED and Bound().scale.args[0].__class__ is Bound
        return TAGGED(x, 2), TAGGED.tag, TWICE(x), made(3), made, bare, partial(bare, 2)(), TAGGED.keywords

    def partials_of_subclasses(x):
        """functools flattens partials that have no attributes and the default call."""
        bare = Bare(scaled, x)
        named = Bare(scaled, x)
        named.name = "named"
        outer = [partial(inner, 2) for inner in (bare, named, TAGGED, TWICE)]
        flat = [p.func is scaled for p in (*outer, Bare(TWICE, 3), Twice(bare, 2))]
        return outer[0](), outer[1](), outer[3](x), flat, Bare(bare, 2)

    def partials_of_torch_functions(x):
        return partial(torch.add, x)(1), partial(torch.clamp, min=0.5)(x), [*map(partial(torch.mul, other=2), [x, x])]

    @programs(breaks=None, graphs=None)
    def methods_with_arguments(x):
        layer = Layer()
        return partial(layer.apply, x)(y=2), layer.shifted(x), Layer(4).shifted(x, z=5)

    @programs(lambda: (vector(), Layer()))
    def cached_property_of_an_argument(x, layer):
        return x * layer.gain + layer.gain, layer.computed

    def cached_property_of_a_new_object(x):
        layer = Layer(x)
        return layer.gain + layer.gain, layer.computed, layer

    @programs(breaks=None, graphs=None)
    def dispatch_of_methods(x):
        layer = Layer()
        return layer.kind(x), layer.kind(2), layer.kind(True), layer.kind("text")

    def folding_sequences(x):
        total = functools.reduce(lambda a, b: a + b, [x, x, x])
        return total, functools.reduce(operator.mul, [1, 2, 3], 4), functools.reduce(max, iter([x.shape[0], 2]))

    @programs(breaks=None, graphs=None)
    def comparison_functions(x):
        key = functools.cmp_to_key(lambda a, b: b - a)
        return x + 1, sorted([3, 1, 2], key=key), max([1, 5, 2], key=key), sorted("ab", key=lambda c: key(ord(c)))

    def total_order(x):
        a, b = Ranked(1), Ranked(2)
        return x * 2, a < b, a <= b, a > b, a >= b, [r.rank for r in sorted([b, a])], min(b, a).rank

    def getters(x):
        rows = [{"a": 2, "t": x}, {"a": 1, "t": x + 1}]
        layers = [Layer(2), Layer(1)]
        return (
            [row["t"] for row in sorted(rows, key=operator.itemgetter("a"))],
            [layer.k for layer in sorted(layers, key=operator.attrgetter("k"))],
            operator.itemgetter(0, 2)("abc")[1],
            operator.attrgetter("shape", "ndim")(x)[1],
            operator.methodcaller("clamp", 0, max=1)(x),
        )

    @programs(lambda: (vector(), Layer()))
    def global_getters(x, layer):
        return FIRST([x, 1]), x * RANK(layer), TRIPLED(x), CLAMPED(x), [*map(FIRST, [(1, 2), (3, 4)])]

    @programs(breaks=None, graphs=None)
    def functions_of_operator(x):
        table, items = {}, [1, 2]
        operator.setitem(table, "a", x)
        operator.delitem(items, 0)
        made = operator.add(x, 1), table, items, operator.concat([1], [2])
        made += operator.countOf([1, 1, 2], 1), operator.indexOf([1, 2], 2), operator.iconcat(items, (3,))
        return *made, operator.inv(2), operator.matmul(x, x), operator.call(lambda v: v * 2, x)


@pytest.mark.parametrize("change", [{"tag": "other"}, {"keywords": {"b": 5}}])
def test_changed_subclass_of_partial(change):
    program = lambda x, p: (p(x, 2), p.tag)
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    for keywords in ({"b": 3, "tag": "one"}, {"b": 3, "tag": "one", **change.get("keywords", change)}):
        x, p = torch.ones(2), Tagged(scaled, **keywords)
        (y, tag), (expected, its_tag) = compiled(x, p), program(x, p)
        assert y.tolist() == expected.tolist() and tag == its_tag


@functools.cache
def twice(n):
    return n * 2


@functools.cache
def fibonacci(n, start=1):
    return start if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def noting(log):
    @functools.cache
    def body(n):
        log.append(n)
        return n * 2

    return body


LOG: list[int] = []
CACHED_BODY = noting(LOG)


@functools.lru_cache
def mask_of(n, *, kind="lower", fill=1.5):
    made = torch.full((n, n), fill)
    return made.tril() if kind == "lower" else made.triu()


@functools.cache
def table_of(n):
    return [torch.arange(n), {"twice": n * 2, "name": str(n)}]


class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Parameter(torch.ones(4))
        self.scale = 2

    @functools.lru_cache(maxsize=4)  # noqa: B019 (as programs are)
    def table(self, n):
        return torch.arange(n) * self.scale

    @staticmethod
    @functools.cache
    def offset(n):
        return torch.full((n,), 0.5)

    def forward(self, x):
        return x * self.table(4) + self.offset(4) * self.base


@functools.cache
def shared(n):
    return [n]


FACTOR = {"value": 2}


@functools.cache
def stale(n):
    return n * FACTOR["value"]


@programs()
class LruCache:
    def cached_arithmetic(x):
        return x * twice(x.shape[0]) + twice(3), fibonacci(10), fibonacci(3, start=1), twice.__wrapped__(4)

    @programs(graphs=2, breaks=1)
    def effects_happen_when_the_cache_misses(x):
        y = x + 1
        return y * CACHED_BODY(3), LOG

    def cached_tensors(x):
        made = mask_of(4) @ x, mask_of(4, kind="upper") @ x, mask_of(4)
        return *made, table_of(3)[1]["name"], table_of(3)[0] * x[:3].sum()

    @programs(lambda: (Positions(), vector()))
    def cached_methods(m, x):
        return m(x)

    def a_cache_behind_a_write(x):
        seen = []
        x.add_(1)
        return x * mask_of(4, kind="upper", fill=2.5), seen


def test_cached_effects():
    log: list[int] = []
    body = noting(log)

    def f(x):
        y = x + 1
        return y * body(3) + body(3)

    assert_same_as_eager(f, vector, calls=2)
    assert log == [3]


def test_what_a_cache_holds_is_noticed_and_may_change():
    def make():
        @functools.cache
        def rows(n):
            return [torch.ones(n), n]

        return rows

    rows = make()

    def program(x):
        found = rows(3)
        return x * found[0] + found[1], found

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(3)
    result, found = compiled(x)
    assert found is rows(3) and result.tolist() == [4, 4, 4]
    found[0].mul_(2)  # all calls get the same tensor
    assert compiled(x)[0].tolist() == [5, 5, 5]
    found[1] = 10
    assert compiled(x)[0].tolist() == [12, 12, 12]
    rows.cache_clear()
    result, again = compiled(x)
    assert again is not found and again is rows(3) and result.tolist() == [4, 4, 4]


def test_what_a_method_s_cache_holds_is_that_of_the_first_call():
    compiled = minidynamo.compile(Positions(), backend="eager", fullgraph=True)
    plain = Positions()
    x = torch.ones(4)
    for scale in (2, 3):
        compiled.scale = plain.scale = scale  # too late
        torch.testing.assert_close(compiled(x), plain(x))


def test_a_cached_list_is_one_list():
    def f(x):
        items = shared(2)
        items.append(x.shape[0])
        return x * len(shared(2))

    compiled = minidynamo.compile(f, backend="eager")
    try:
        assert [compiled(torch.ones(1)).item() for _ in range(3)] == [2, 3, 4]
    finally:
        shared.cache_clear()


def test_a_cached_result_may_be_old():
    f = lambda x: x * stale(3)
    try:
        assert_same_as_eager(f, vector, graphs=1)
        FACTOR["value"] = 5
        assert_same_as_eager(f, vector, graphs=1)
    finally:
        FACTOR["value"] = 2
        stale.cache_clear()


def test_a_cached_result_may_be_of_an_equal_key():
    twice.cache_clear()
    twice(3)
    assert_same_as_eager(lambda x: (x + 1, twice(3.0)), vector)


def test_functions_that_choose_by_class_are_compiled():
    compiled = minidynamo.compile(combine, backend="eager", fullgraph=True)
    x = torch.randn(2)
    assert torch.equal(compiled(x, 3), x * 3)
    assert compiled(1, 2) == 3
    assert compiled.__name__ == "combine"
    assert minidynamo.uncompile(compiled) is combine


class Counted:
    def __init__(self, fn, **options):
        functools.update_wrapper(self, fn, **options)
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1
        return self.__wrapped__(*args)


def described(x):
    """Doubles."""
    return x * 2


described.tag = 5


class Rule:
    """Doubles."""

    def __init__(self):
        self.by = 2

    def __call__(self, x):
        return x * self.by


class Reader:
    @singledispatchmethod
    @classmethod
    def read(cls, value):
        return cls.__name__, value

    @read.register
    @classmethod
    def _(cls, value: str):
        return f"text {value}"

    @singledispatchmethod
    @staticmethod
    def size(value):
        return 1

    @size.register
    @staticmethod
    def _(value: list):
        return len(value)


class LaterReader(Reader):
    pass


@programs()
class ChangedSurroundings:
    def wrappers_that_are_objects(x):
        counted, plain = Counted(described), Counted(described, updated=())
        names = [(w.__name__, w.__doc__, w.__module__, w.__wrapped__ is described) for w in (counted, plain)]
        return counted(x) + plain(x) + counted(x), counted.calls, names, counted.tag, hasattr(plain, "tag"), counted

    def wraps_a_built_in_function(x):
        @functools.wraps(torch.sin)
        def sine(x):
            return torch.sin(x)

        return sine(x), sine.__name__, sine.__qualname__, sine.__module__, sine.__doc__, sine.__wrapped__ is torch.sin

    @programs(lambda: (Rule(), torch.ones(3)))
    def wraps_an_object(rule, x):
        @functools.wraps(rule)
        def call(x):
            return rule(x)

        shown = call.__name__, call.__qualname__, call.__module__, call.__doc__, call.by, call.__wrapped__ is rule
        return call(x), shown

    def wraps_a_partial_object(x):
        double = functools.partial(torch.mul, other=2)

        @functools.wraps(double)
        def call(x):
            return double(x)

        return call(x), call.__name__, call.__module__, call.__wrapped__ is double

    @programs(breaks=None, graphs=None)
    def class_methods_by_type(x):
        made = x + 1, Reader.read("a"), LaterReader().read(x), LaterReader.read(1)
        return *made, Reader.size([x, x]), Reader().size(x)


def test_another_implementation_is_noticed():
    @singledispatch
    def kind(value):
        return 1

    f = lambda x: x * kind(x)
    compiled = minidynamo.compile(f, backend="eager")
    for factor in (1, 2, 3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(factor)))
        kind.register(torch.Tensor)(lambda value, factor=factor: factor + 1)


def test_a_class_registered_with_an_abstract_one_is_noticed():
    class Abstract(abc.ABC):
        pass

    class Plain:
        pass

    @singledispatch
    def kind(value):
        return 1

    kind.register(Abstract)(lambda value: 2)
    f = lambda x, obj: x * kind(obj)
    compiled = assert_same_as_eager(f, lambda: (torch.ones(2), Plain()))
    Abstract.register(Plain)
    assert torch.equal(compiled(torch.ones(2), Plain()), torch.full((2,), 2.0))


def test_other_getters_and_caches_are_noticed():
    holder = Layer()
    holder.get, holder.compute = operator.itemgetter(0), twice
    f = lambda x, layer: x * layer.get([2, 3]) + layer.compute(2)
    compiled = assert_same_as_eager(f, lambda: (torch.ones(2), holder), graphs=1)
    holder.get = operator.itemgetter(1)
    assert torch.equal(compiled(torch.ones(2), holder), torch.full((2,), 7.0))
    holder.compute = fibonacci
    assert torch.equal(compiled(torch.ones(2), holder), torch.full((2,), 5.0))
