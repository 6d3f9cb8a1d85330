"""Objects, methods and callables that change, are arguments or are created anew."""

# The histories keep the style of users, against the advice of linters.

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import minidynamo
from tests.end_to_end.histories import Histories, attempt, compare, vector

histories = Histories()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("history", histories)
def test_same_as_eager(history):
    compare(history, "eager")


@histories
def decorated_methods(compiled):

    class A:
        k = 2

        def __init__(s, n):
            s.n = n

        @compiled
        def m(s, x):
            return x * s.n

        @staticmethod
        @compiled
        def st(x, y=1):
            return x + y

        @classmethod
        @compiled
        def cm(cls, x):
            return x * cls.k

        @compiled
        @staticmethod
        def st2(x):
            return x - 1

        @compiled
        @classmethod
        def cm2(cls, x):
            return x + cls.k

        @property
        @compiled
        def p(s):
            return torch.ones(2) * s.n

        @compiled
        def __call__(s, x):
            return s.m(x) + 1

    class B(A):
        k = 5

    a, b = (A(3), B(4))
    for o in (a, b, a):
        yield o.m(vector())
        yield o.st(vector())
        yield o.cm(vector())
        yield o.st2(vector())
        yield o.cm2(vector())
        yield o.p
        yield o(vector())
    yield A.m(a, vector())
    yield A.cm(vector())
    a.n = 9
    yield a.m(vector())
    A.k = 7
    yield A.cm(vector())
    yield B.cm(vector())
    m = compiled(a.m)
    yield m(vector())
    a.n = 1
    yield m(vector())


@histories
def compiled_twice(compiled):

    @compiled
    def f(x):
        return x + 1

    g = compiled(f)
    h = compiled(g)
    yield f(vector())
    yield g(vector())
    yield h(vector())

    @compiled
    def k(x):
        return f(x) * 2 + g(x)

    yield k(vector())


@histories
def compiled_inner_break(compiled):

    @compiled
    def f(x):
        y = x + 1
        minidynamo.graph_break()
        return y * 2

    @compiled
    def k(x):
        return f(x) + f(x * 3)

    yield k(vector())
    yield k(vector())


@histories
def partials(compiled):

    def f(x, a, b=1):
        return x * a + b

    p = compiled(functools.partial(f, a=2))
    yield p(vector())
    yield p(vector(), b=vector())

    @compiled
    def g(h, x):
        return h(x)

    yield g(functools.partial(f, a=1), vector())
    yield g(functools.partial(f, a=5), vector())
    yield g(functools.partial(f, a=vector()), vector())
    yield g(lambda x: x, vector())


@histories
def lambdas_args(compiled):

    @compiled
    def g(h, x):
        return h(x)

    for k in range(4):
        yield g(lambda x, k=k: x * k, vector())
    for k in range(4):
        yield g((lambda k: lambda x: x * k)(k), vector())

    def mk(k):

        def h(x):
            return x + k

        h.__defaults__ = None
        return h

    for k in (1, 1.0, True, vector()):
        yield g(mk(k), vector())


@histories
def bound_args(compiled):

    class A:
        def __init__(s, n):
            s.n = n

        def m(s, x):
            return x * s.n

    @compiled
    def g(h, x):
        return h(x)

    yield g(A(1).m, vector())
    yield g(A(2).m, vector())
    yield g(A(2.0).m, vector())
    yield g(vector().add, vector())
    yield g(torch.relu, vector())
    yield g(torch.sin, vector())
    yield g(nn.ReLU(), vector())
    yield g(nn.Linear(3, 1), vector()).shape


@histories
def builtin_methods_args(compiled):
    l = []

    @compiled
    def g(h, x):
        h(x + 1)
        return x

    yield g(l.append, vector())
    yield l
    m = []
    yield g(m.append, vector())
    yield m
    s = collections.deque()
    yield g(s.append, vector())
    yield list(s)


@histories
def attr_objects(compiled):

    @dataclasses.dataclass
    class D:
        a: int
        b: object = None

    @compiled
    def f(d, x):
        d.a += 1
        return (x * d.a, d.b, D(1, x))

    d = D(1)
    yield f(d, vector())[0]
    yield d.a
    d.b = vector()
    yield f(d, vector())[1]
    yield f(D(1.5), vector())[0]

    @dataclasses.dataclass(frozen=True)
    class Fz:
        a: int

    @compiled
    def g(d, x):
        return x * d.a

    yield g(Fz(1), vector())
    yield g(Fz(2), vector())

    @dataclasses.dataclass(slots=True)
    class Sl:
        a: int
        t: object = None

    @compiled
    def h(d, x):
        d.t = x + d.a
        d.a = 5
        return d.t

    s = Sl(1)
    yield h(s, vector())
    yield (s.a, s.t)
    yield h(s, vector())


@histories
def props(compiled):

    class A:
        def __init__(s):
            s._v = 1

        @property
        def v(s):
            return s._v * 2

        @v.setter
        def v(s, x):
            s._v = x + 1

    @compiled
    def f(a, x):
        a.v = a.v + 1
        return x * a.v

    a = A()
    yield f(a, vector())
    yield a._v
    yield f(a, vector())
    A.v = property(lambda s: 100, lambda s, x: None)
    yield f(a, vector())
    yield a._v


@histories
def slots_etc(compiled):

    class A:
        __slots__ = ("a", "__weakref__")

    @compiled
    def f(a, x):
        return x * getattr(a, "a", 3)

    a = A()
    yield attempt(f, a, vector())
    a.a = 2
    yield f(a, vector())
    del a.a
    yield attempt(f, a, vector())


@histories
def setattr_override(compiled):

    class A:
        def __setattr__(s, n, v):
            object.__setattr__(s, n, v * 2)

    @compiled
    def f(a, x):
        a.z = 1
        return x * a.z

    a = A()
    yield f(a, vector())
    yield a.z
    del A.__setattr__
    yield f(a, vector())
    A.__setattr__ = lambda s, n, v: object.__setattr__(s, n, 7)
    yield f(a, vector())


@histories
def bool_len_added(compiled):

    class A:
        pass

    @compiled
    def f(a, x):
        return x + 1 if a else x - 1

    a = A()
    yield f(a, vector())
    A.__bool__ = lambda s: False
    yield f(a, vector())
    del A.__bool__
    yield f(a, vector())
    A.__len__ = lambda s: 0
    yield f(a, vector())


@histories
def eq_hash(compiled):

    class A:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __hash__(s):
            return 1

    @compiled
    def f(a, b, x):
        return (x + 1 if a == b else x - 1, a in [b], a != b)

    yield f(A(1), A(1), vector())
    yield f(A(1), A(2), vector())
    a = A(1)
    yield f(a, a, vector())


@histories
def objkeys(compiled):

    class K:
        pass

    k1, k2 = (K(), K())

    @compiled
    def f(d, k, x):
        return d[k] + x

    yield f({k1: vector()}, k1, vector())
    yield f({k2: vector() * 2}, k2, vector())
    yield attempt(f, {k2: vector()}, k1, vector()).__class__.__name__
    yield f({k1: vector() * 2, k2: vector()}, k1, vector())


@histories
def tensorkeys(compiled):
    t = vector()

    @compiled
    def f(d, k, x):
        return d[k] + x

    yield f({t: 1}, t, vector())
    u = vector()
    yield f({u: 5}, u, vector())


@histories
def namedtuples(compiled):
    P = collections.namedtuple("P", "a b")

    class Q(P):
        def s(self):
            return self.a + self.b

    @compiled
    def f(p, x):
        return (p.a * x + p.b, p._replace(a=x), type(p).__name__)

    yield f(P(1, 2), vector())
    yield f(P(1, vector()), vector())
    yield f(Q(1, 2), vector())
    yield f(P(2, 2), vector())


@histories
def threads(compiled):

    @compiled
    def f(x, n):
        y = x * n
        if n % 2:
            minidynamo.graph_break()
        return y + 1

    res = {}

    def work(i):
        for r in range(20):
            res[i, r] = f(vector() + i, r % 4)

    ts = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    yield [res[k] for k in sorted(res)]


@histories
def freed(compiled):

    class Obj:
        pass

    gc.collect()
    gc.disable()
    try:

        @compiled
        def f(x, o):
            o.v = x + 1
            return [x * 2, o]

        x = vector()
        o = Obj()
        r = f(x, o)
        r = f(x, o)
        refs = [weakref.ref(v) for v in (x, o, r[0], o.v)]
        del x, o, r
        yield [v() is None for v in refs]
        t = torch.ones(3)
        o = Obj()

        def mk():

            def g(x):
                y = x + t
                minidynamo.graph_break()
                return y * o.k if hasattr(o, "k") else y

            return compiled(g)

        g = mk()
        g(vector())
        g(vector())
        rt = weakref.ref(t)
        ro = weakref.ref(o)
        rg = weakref.ref(g)
        del g, mk, t, o
        yield [rt() is None, ro() is None, rg() is None]
        m = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        m(vector()).sum().backward()
        m(vector())
        rm = weakref.ref(m)
        rw = weakref.ref(m[0].weight)
        del m
        yield [rm() is None, rw() is None]
    finally:
        gc.enable()


@histories
def class_freed(compiled):

    def mk():

        class A:
            k = 1

            def m(s, x):
                return x + s.k

        return A

    @compiled
    def f(a, x):
        return a.m(x)

    A = mk()
    yield f(A(), vector())
    w = weakref.ref(A)
    del A
    gc.collect()
    yield None
    A = mk()
    A.k = 4
    yield f(A(), vector())
    for i in range(12):
        A = mk()
        A.k = i
        yield f(A(), vector())


@histories
def global_state_writes(compiled):
    global CNT
    CNT = 0

    @compiled
    def f(x):
        global CNT
        CNT += 1
        if CNT == 3:
            minidynamo.graph_break()
        CNT *= 2
        return x * CNT

    for _ in range(4):
        yield f(vector())
        yield CNT


@histories
def nonlocal_writes(compiled):
    n = 0
    h = []

    @compiled
    def f(x):
        nonlocal n
        n += 1
        h.append(lambda: n)
        y = x + n
        minidynamo.graph_break()
        n += 10
        return y * n

    for _ in range(3):
        yield f(vector())
        yield (n, [k() for k in h])


@histories
def closures_returned(compiled):

    @compiled
    def f(x):
        k = 0

        def inc():
            nonlocal k
            k += 1
            return x * k

        def get():
            return k

        inc()
        return (inc, get)

    i, g = f(vector())
    yield g()
    yield i()
    yield g()
    i2, g2 = f(vector())
    yield i2()
    yield (g2(), g())


@histories
def slices(compiled):

    @compiled
    def f(x, s):
        return x[s]

    t = torch.arange(6.0)
    yield f(t, slice(1, 3))
    yield f(t, slice(2, 4))
    yield f(t, slice(None, None, 2))
    yield f(t, 2)
    yield f(t, None)
    yield f(t, ...)
    yield f(t, torch.tensor([1, 2]))
    yield f(t, t > 2)
    yield f(t, [0, 1])
    yield f(t, True)

    @compiled
    def g(x, i, v):
        x[i] = v
        return x

    yield g(t.clone(), slice(0, 2), 5)
    yield g(t.clone(), slice(0, 2), vector()[:2])
    yield g(t.clone(), 1, 7.0)
    yield g(t.clone(), t > 3, 0)


@histories
def devices_dtypes(compiled):

    @compiled
    def f(x, dt, dev):
        return (x.to(dt), torch.zeros(2, dtype=dt, device=dev))

    yield f(vector(), torch.float64, "cpu")
    yield f(vector(), torch.int32, "cpu")
    yield f(vector(), torch.float32, torch.device("cpu"))
    yield f(vector(), torch.float32, "meta")


@histories
def deleted_attributes(compiled):
    """Attributes of the class, or of `__getattr__`, cannot be deleted from the instance."""

    class A:
        k = 1

        def __getattr__(self, name):
            return 9

    class Slots:
        __slots__ = ("own",)
        k = 1

    @compiled
    def f(x, o, name):
        try:
            delattr(o, name)
        except AttributeError:
            return x - 1
        return x + 1

    a = A()
    for name in ("k", "own", "missing"):
        for o in (a, Slots()):
            yield f(vector(), o, name)
            with contextlib.suppress(AttributeError):
                setattr(o, name, 2)
            yield f(vector(), o, name), a.__dict__
