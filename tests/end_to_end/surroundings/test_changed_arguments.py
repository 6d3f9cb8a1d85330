"""Arguments of other values, classes, orders and identities from call to call."""

from __future__ import annotations

import collections
import math

import pytest
import torch

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test("aot_eager")


G = 2.0


# The dict of keywords after the program changes it, as seen by later readers.
KEPT = []


def returned(**given):
    given["y"] = given.pop("x") + 1
    return given


def returned_as_a_view(**given):
    view = given.values()
    given["y"] = given.pop("x") + 1
    return view


def returned_in_a_method(**given):
    get = given.get
    given["y"] = given.pop("x") + 1
    return [get("x"), get]


def held_by_a_closure(**given):
    def change():
        given["y"] = given.pop("x") + 1

    show = lambda: given
    change()
    return show


def stored(**given):
    given["y"] = given.pop("x") + 1
    KEPT.append(given)


def used_behind_a_break(**given):
    given["y"] = given.pop("x") + 1
    minidynamo.graph_break()
    return given["y"] * 2, list(given)


def held_by_itself(**given):
    given["self"] = given
    given["x"] = given["x"] + 1
    return given["self"]["self"]["x"]


SHOWN = {
    returned: dict.items,
    returned_as_a_view: list,
    returned_in_a_method: lambda result: (result[0], result[1]("x"), result[1]("y")),
    held_by_a_closure: lambda result: result().items(),
    stored: lambda result: KEPT.pop().items(),
    used_behind_a_break: lambda result: result,
    held_by_itself: lambda result: result,
}


@histories
class Cases:
    def numbers(compiled):
        f = compiled(lambda x, n: (x * n, n))
        for n in (1, True, 1.0, 0, False, 0.0, -0.0, 2, float("nan"), float("inf"), 1 + 0j, "a", None, 2**70):
            yield attempt(f, vector(), n)
        for n in (1, True, 1.0, 0, False, 0.0, -0.0, 2):
            yield attempt(f, vector(), n)

    def signed_zero(compiled):
        f = compiled(lambda x, n: (math.copysign(1, n) * x, torch.full((2,), n)))
        yield f(vector(), 0.0), f(vector(), -0.0), f(vector(), 0.0)

    def nested_const(compiled):
        f = compiled(lambda x, t: (x * t[0][0], t))
        for t in (
            *(((1,),), ((True,),), ((1.0,),), ([1],), ([True],), {0: {0: 1}}, {0: {0: 1.0}}, {0: {False: 1.0}}),
            {False: (2,)},
        ):
            yield f(vector(), t)

    def dict_keys_types(compiled):
        f = compiled(lambda x, d: (x * sum(d.values()), list(d)))
        for d in (
            *({1: 2}, {True: 2}, {1.0: 2}, {"1": 2}, {1: 2, 2: 3}, {2: 3, 1: 2}, {None: 4}, {(1,): 1}, {(True,): 1}),
        ):
            yield f(vector(), d)

    def none_tensor(compiled):
        @compiled
        def f(x, m=None):
            if m is None:
                return x
            return x * m

        yield f(vector()), f(vector(), vector()), f(vector(), None), f(vector(), 3), f(m=vector(), x=vector())

    def kwargs_order(compiled):
        @compiled
        def f(**kw):
            r = 0
            for i, (k, v) in enumerate(kw.items()):
                r = r + v * (i + 1)
            return (r, list(kw))

        yield f(a=vector(), b=vector() * 2), f(b=vector() * 2, a=vector()), f(a=vector())
        yield f(b=vector(), c=vector(), a=vector())

    def starargs(compiled):
        f = compiled(lambda *a, **k: (sum(a), len(k), type(a)))
        yield f(vector()), f(vector(), vector()), f(vector(), 1, 2.0, q=1), f(vector(), 1, 2, q=vector())

    def lists(compiled):
        f = compiled(lambda xs: (sum(xs), len(xs), type(xs)))
        yield f([vector()]), f([vector(), vector()]), f((vector(), vector())), f([vector(), 1])
        yield f([vector(), 1.0]), f([vector(), True]), f([]), f(collections.deque([vector()]))

    def aliased_args(compiled):
        @compiled
        def f(a, b):
            a.add_(1)
            return a + b

        t = vector()
        yield f(t, t), t, f(vector(), vector())
        u = vector()
        yield f(u, u), u

    def aliased_views(compiled):
        @compiled
        def f(a, b):
            a.add_(1)
            b.mul_(2)
            return a + b

        t = torch.arange(6.0)
        yield f(t[:3], t[3:])
        yield t
        yield f(t[:3], t[1:4])
        yield t
        yield f(t[:3], t[:3])
        yield t
        yield f(vector(), vector())

    def same_in_list(compiled):
        @compiled
        def f(xs):
            xs[0].add_(1)
            return xs[1] * 2

        t = vector()
        yield f([t, t])
        yield f([vector(), vector()])
        yield f([t, t[:]])
        yield t
        yield f([t, vector()])

    def same_obj_state(compiled):
        class A:
            pass

        @compiled
        def f(a, b, x):
            a.v = 1
            b.v = 2
            return x * a.v

        a = A()
        b = A()
        yield f(a, b, vector()), f(a, a, vector()), f(a, b, vector())

    def same_lists(compiled):
        @compiled
        def f(a, b, x):
            a.append(1)
            b.append(2)
            return (x * len(a), a is b)

        l = []
        m = []
        yield f(l, m, vector())
        l = []
        yield f(l, l, vector()), l
        l = [1]
        m = [1]
        yield f(l, m, vector()), f(l, l, vector())

    def dict_aliasing(compiled):
        @compiled
        def f(d, e, x):
            d["a"] = x + 1
            return e.get("a", x) * 2

        d = {}
        e = {}
        yield f(d, e, vector())
        d = {}
        yield f(d, d, vector()), f({}, {"a": vector()}, vector())

    def cell_same_as_arg(compiled):
        t = vector()

        @compiled
        def f(a):
            a.add_(1)
            return a + t

        yield f(vector()), f(t), t


@pytest.mark.parametrize("fn", SHOWN, ids=lambda fn: fn.__name__)
def test_changed_keywords_are_seen_where_the_dict_is(fn):
    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        assert str(SHOWN[fn](compiled(x=torch.ones(2)))) == str(SHOWN[fn](fn(x=torch.ones(2))))
    assert compiled.graphs
