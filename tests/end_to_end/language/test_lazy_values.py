"""Values that a program only moves, through operations of containers, objects and functions, may be anything.

Each program is called with values of all kinds in one position: one compile serves all kinds, and returns the same
objects. Later reads of a value, its class or its identity are guarded.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import operator
import random
import types

import pytest
import torch

import minidynamo
from minidynamo.testing import no_recompile
from tests.end_to_end.programs import rows_of

X = torch.arange(4.0)
Pair = collections.namedtuple("Pair", "first second")


class Thing:
    def __init__(self, value=None):
        self.value = value


class Slotted:
    __slots__ = ("value",)


class Checked:
    """Attributes, items and calls that are methods of the program's."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        return self.last

    @property
    def held(self):
        return self.last

    @held.setter
    def held(self, value):
        self.last = value

    @functools.cached_property
    def kept(self):
        return self.last

    def __setitem__(self, key, value):
        self.last = value

    def __getitem__(self, key):
        return self.last

    def __enter__(self):
        return self.last

    def __exit__(self, *error):
        pass

    def __iter__(self):
        return self

    def __next__(self):
        return self.last


class Missing(dict):
    def __missing__(self, key):
        return self["there"]


class Words(list):
    pass


class Failure(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: object
    second: object = None


copy.copy(Thing())  # leaves a mark in the class
OUTSIDE = types.SimpleNamespace()


def given(*args, **kwargs):
    return args, kwargs


class Moved:
    def through_dicts(x, v):
        d = {"a": v, "b": v}
        d.update({"c": v}, e=v)
        d.update([("f", v)])
        d |= {"g": v}
        taken = d.pop("a"), d.pop("none", v), d.setdefault("b", 1), d.setdefault("h", v), d.popitem()
        made = x * 2, d, taken, d.get("c"), d.get("none", v), d | {"b": v}, "c" in d
        return *made, [*d.values()], dict(d, z=v), dict(iter([("k", v)]))

    def through_other_dicts(x, v):
        ordered, made, below = collections.OrderedDict(a=v), collections.defaultdict(lambda: v), Missing(there=v)
        ordered["b"] = v
        ordered.move_to_end("a")
        plain: dict[str, object] = {}
        view = types.MappingProxyType(plain)
        plain["a"] = v
        below["a"] = v
        seen = view["a"], view.get("b", v), below["none"], below["a"], below.get("there")
        return x * 2, ordered, made["a"], seen, collections.ChainMap({"a": v})["a"], dict.fromkeys("ab", v)

    def through_lists(x, v):
        items = [v, 1]
        items[0:1] = [v, v]
        items *= 2
        taken = items.pop(), items.pop(0)
        items.insert(1, v)
        items.sort(key=lambda item: 0)
        del items[0]
        made = x * 2, items, taken, items[:], items[::-1], operator.add([v], items)
        return *made, items[-1], [*items] * 2, copy.copy(items), Words([v])[0]

    def through_tuples(x, v):
        pair = Pair(x * 2, v)._replace(first=1)
        made = x * 2, operator.add((v, 1), (2, v)), (v,) * 2, (1, v)[1:], pair.second
        return *made, Pair._make([v, 1]), pair._asdict(), tuple(iter([v]))

    def through_a_deque(x, v):
        queue = collections.deque([v, 1], maxlen=3)
        queue.append(v)
        queue.appendleft(v)
        queue.rotate(1)
        return x * 2, queue.popleft(), queue.pop(), [*queue], [*reversed(queue)], queue.copy(), queue + queue

    def through_attributes(x, v):
        thing, slotted, space = Thing(), Slotted(), types.SimpleNamespace(a=v)
        thing.other = v
        object.__setattr__(thing, "value", v)
        slotted.value = v
        vars(space)["b"] = v
        OUTSIDE.last = v
        OUTSIDE.more = v
        seen = thing.other, getattr(thing, "none", v), copy.copy(thing).value, vars(thing)["value"]
        frozen = Frozen(1, v)
        made = x * 2, seen, slotted.value, vars(space)
        return *made, OUTSIDE.last, OUTSIDE.more, dataclasses.replace(frozen, first=2).second

    def through_methods(x, v):
        checked = Checked()
        checked.last = v
        checked.held = v
        checked["key"] = v
        with checked as entered:
            pass
        return x * 2, checked.held, checked["key"], entered, checked.kept, checked.kept, checked.unknown, next(checked)

    def through_defaults(x, v):
        inner = lambda first, second=v, *, third=v: (second, third)
        return x * 2, inner(1), inner(v), (lambda item=v: item)(), functools.partial(given, v, k=v)(v)

    def through_generators(x, v):
        def returns():
            got = yield v
            yield got
            return v

        def delegates():
            yield (yield from returns())

        started = returns()
        first = next(started)
        return x * 2, first, started.send(v), [*delegates()], next(iter([]), v), next(iter([v]))

    def through_iterators(x, v):
        pairs = list(zip([v], reversed([v, 1]))), list(enumerate([v])), list(map(given, [v])), dict(zip("a", [v]))
        looped = [*itertools.chain([v], (v,)), *itertools.repeat(v, 2), *filter(lambda item: True, [v])]
        more = (
            list(itertools.zip_longest([1], [], fillvalue=v)),
            list(itertools.product([v], [1])),
            [*itertools.tee([v])[0]],
        )
        return (
            x * 2,
            pairs,
            looped,
            more,
            list(itertools.islice([1, v], 1, 2)),
            functools.reduce(lambda a, b: b, [1, v]),
        )

    def through_exceptions(x, v):
        try:
            raise Failure(v, 1)
        except Failure as failure:
            failure.other = v
            first, _ = failure.args
            return x * 2, first, failure.other

    def through_contexts(x, v):
        @contextlib.contextmanager
        def manager():
            yield v

        with manager() as first, contextlib.nullcontext(v) as second:
            return x * 2, first, second

    def through_patterns(x, v):
        match {"a": v, "b": [v, 1]}:
            case {"a": first, "b": [second, 1]}:
                pass
        match Frozen(1, v):
            case Frozen(first=1, second=third):
                return x * 2, first, second, third

    def through_functions(x, v):
        items = [v]
        operator.setitem(items, 0, v)
        return x * 2, operator.itemgetter(0)(items), operator.attrgetter("value")(Thing(v)), operator.getitem(items, 0)

    def through_iterators_that_are_left(x, v):
        started = iter((1, v, v))
        next(started)
        return x * 2, [*started], reversed((v, 1)), iter([v])

    def asked_for_itself(x, v):
        items = [v]
        return x * 2, v is v, items[0] is v, items.pop() is not v, v


def anything():
    values = [5, 6, 2.5, float("nan"), "a", "b", b"c", None, True, 1j, (1,), [1], [1, 2], {"k": 1}, {1}, range(3)]
    things = [Thing(), Thing(), Thing, len, torch.relu, lambda: 1, types, Failure(), iter([1]), torch.nn.Linear(1, 1)]
    return [*values, *things, torch.ones(2), torch.ones(3, requires_grad=True), torch.float32]


def same(one, other):
    """True if two results are the same objects, or equal new objects."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(same, one.values(), other.values()))
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__next__"):
        return same([*one], [*other])
    return isinstance(one, (int, str)) and one == other


@pytest.mark.parametrize("program", rows_of(Moved))
def test_what_is_only_moved_may_be_anything(program):
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    compiled(X, None if program is Moved.asked_for_itself else 1)
    with no_recompile():
        for value in anything():
            if value is None and program is Moved.through_generators:
                continue  # a generator that returns None ends without a value
            assert same(compiled(X, value), program(X, value)), value


# Values that are read later


class Read:
    def read_defaults(x, v):
        inner = lambda y, b=v, *, c=v: y * b + c
        return inner(x)

    def read_dicts(x, v):
        d = {"a": v}
        d.update(b=v)
        d |= {"c": v}
        return x * d.get("a") + d.pop("b") + d.pop("none", v) + sum((d | {"e": v}).values()) + d.setdefault("f", v)

    def read_lists(x, v):
        items = [v] + [1] * 2
        items[0:1] = [v, v]
        last = items.pop()
        items.sort(key=lambda item: 0)
        return x * items.pop(0) + last + items[0:2][0] + items[::-1][-1]

    def read_sorted(x, v):
        items = [v, 2.5, 1]
        items.sort()
        return x * items[0] + max(items)

    def read_queue(x, v):
        queue = collections.deque([1, v])
        queue.rotate(1)
        total = 0
        for item in queue:
            total = total + item
        return x * total + queue.popleft()

    def read_attributes(x, v):
        thing, space = Thing(), types.SimpleNamespace(a=v)
        thing.other = v
        return x * thing.other + getattr(thing, "none", v) + space.a + copy.copy(thing).other

    def read_exceptions(x, v):
        try:
            raise Failure(v)
        except Failure as failure:
            return x * failure.args[0], str(failure)

    def read_generators(x, v):
        def returns():
            got = yield 1
            yield x * got
            return v

        def delegates():
            yield (yield from returns())

        started = returns()
        next(started)
        return started.send(v), x * next(delegates()), x * next(iter([]), v)

    def read_views(x, v):
        plain: dict[str, object] = {}
        view = types.MappingProxyType(plain)
        plain["a"] = v
        return x * view["a"] + view.get("none", v) + copy.deepcopy({"a": [v]})["a"][0]

    def read_truth(x, v):
        return x * 2 if {"a": v}.get("a") else x * 3

    def read_text(x, v):
        return x * 2, f"{ {'a': v}.get('a') }"

    def read_equality(x, v):
        return (
            x * (2 if [v] == [3] else 3) * (5 if {"a": v} == {"a": 3} else 7) * (11 if v in {"a": 3}.values() else 13)
        )

    def read_callable(x, v):
        return x * 2 if callable(v) else x * v

    def read_class(x, v):
        return (x * v, type(v)) if isinstance(v, int) else (x * 3, isinstance(v, (Thing, torch.Tensor)))

    def read_identity(x, v):
        return x * 2 if v is OUTSIDE else x * 3, [v].pop() is torch.relu

    def read_deep(x, v):
        made = {}
        made.setdefault("a", v).add_(1)
        return x + v[0], v


@pytest.mark.parametrize("program", rows_of(Read))
def test_what_is_read_after_it_was_moved_is_guarded(program):
    tensors = [torch.tensor(2.0), torch.tensor([1.0, 2, 3, 4]), torch.tensor(3.0)]
    values = [2, 3, *tensors, 2.5, -0.0, True, "a", None, OUTSIDE, torch.relu, [1], float("nan")]
    values = random.Random(5).sample(values, len(values))
    values += values[:6]
    compiled = minidynamo.compile(program, backend="eager", recompile_limit=100)
    for value in values:
        mine, theirs = (v.clone() if isinstance(v, torch.Tensor) else v for v in (value, value))
        try:
            expected = program(X, theirs)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(X, mine)
            continue
        assert_alike(compiled(X, mine), expected)
        assert_alike(mine, theirs)


def assert_alike(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True) if isinstance(one, torch.Tensor) else None
    if isinstance(one, tuple):
        assert len(one) == len(other) and [assert_alike(*each) for each in zip(one, other)]
    elif not isinstance(one, torch.Tensor):
        assert one is other or (type(one) is type(other) and one == other)


# Values with a read class or identity, and no further reads


@pytest.mark.parametrize(
    ("program", "groups"),
    [
        (lambda x, v: x * 2 if callable(v) else x, [[torch.relu, torch.tanh], [1, 2, 3]]),
        (lambda x, v: x * 2 if isinstance(v, types.FunctionType) else x, [[lambda: 1, lambda: 2], ["a", "b"]]),
        (lambda x, v: (x * 2, type(v)), [[torch.relu, torch.tanh], [[1], [1, 2]], [torch.ones(5), torch.ones(7)]]),
        (lambda x, v: x * 2 if v is OUTSIDE else x, [[OUTSIDE], [1, "a", X, Thing(), torch.relu]]),
    ],
)
def test_only_what_is_asked_is_guarded(program, groups):
    compiled = minidynamo.compile(program, backend="eager", dynamic=False)
    for count, group in enumerate([*groups, *groups], 1):
        for value in group:
            assert same(compiled(X, value), program(X, value))
            assert compiled.stats.compiles == min(count, len(groups)), minidynamo.why(compiled)


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
def test_a_deque_that_changes_while_it_is_looped_over_raises_as_in_eager():
    def program(x, v):
        queue = collections.deque([v, 1])
        for _ in queue:
            queue.append(queue.popleft())
        return x

    compiled = minidynamo.compile(program, backend="eager")
    for value in (1, "a"):
        with pytest.raises(RuntimeError, match="mutated during iteration"):
            compiled(X, value)


def test_no_method_is_bound_to_none():
    compiled = minidynamo.compile(lambda x, v: (x * 2, types.MethodType(given, v)), backend="eager")
    with pytest.raises(TypeError):
        compiled(X, None)
    assert compiled(X, 3)[1].__self__ == 3
