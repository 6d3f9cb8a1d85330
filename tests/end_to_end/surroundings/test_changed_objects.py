"""Objects, methods and callables that change, are arguments or are created anew."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import threading
import weakref

import torch
from torch import nn

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


@histories
class Cases:
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
            yield o.m(vector()), o.st(vector()), o.cm(vector()), o.st2(vector()), o.cm2(vector()), o.p
            yield o(vector())
        yield A.m(a, vector()), A.cm(vector())
        a.n = 9
        yield a.m(vector())
        A.k = 7
        yield A.cm(vector()), B.cm(vector())
        m = compiled(a.m)
        yield m(vector())
        a.n = 1
        yield m(vector())

    def compiled_twice(compiled):
        f = compiled(lambda x: x + 1)
        g = compiled(f)
        h = compiled(g)
        yield f(vector()), g(vector()), h(vector())
        k = compiled(lambda x: f(x) * 2 + g(x))
        yield k(vector())

    def compiled_inner_break(compiled):
        @compiled
        def f(x):
            y = x + 1
            minidynamo.graph_break()
            return y * 2

        k = compiled(lambda x: f(x) + f(x * 3))
        yield k(vector()), k(vector())

    def partials(compiled):
        f = lambda x, a, b=1: x * a + b
        p = compiled(functools.partial(f, a=2))
        yield p(vector()), p(vector(), b=vector())
        g = compiled(lambda h, x: h(x))
        yield g(functools.partial(f, a=1), vector()), g(functools.partial(f, a=5), vector())
        yield g(functools.partial(f, a=vector()), vector()), g(lambda x: x, vector())

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

    def bound_args(compiled):
        class A:
            def __init__(s, n):
                s.n = n

            def m(s, x):
                return x * s.n

        g = compiled(lambda h, x: h(x))
        yield g(A(1).m, vector()), g(A(2).m, vector()), g(A(2.0).m, vector()), g(vector().add, vector())
        yield g(torch.relu, vector()), g(torch.sin, vector()), g(nn.ReLU(), vector())
        yield g(nn.Linear(3, 1), vector()).shape

    def builtin_methods_args(compiled):
        l = []

        @compiled
        def g(h, x):
            h(x + 1)
            return x

        yield g(l.append, vector()), l
        m = []
        yield g(m.append, vector()), m
        s = collections.deque()
        yield g(s.append, vector()), list(s)

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
        yield f(d, vector())[0], d.a
        d.b = vector()
        yield f(d, vector())[1], f(D(1.5), vector())[0]

        @dataclasses.dataclass(frozen=True)
        class Fz:
            a: int

        g = compiled(lambda d, x: x * d.a)
        yield g(Fz(1), vector()), g(Fz(2), vector())

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
        yield h(s, vector()), (s.a, s.t), h(s, vector())

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
        yield f(a, vector()), a._v, f(a, vector())
        A.v = property(lambda s: 100, lambda s, x: None)
        yield f(a, vector()), a._v

    def slots_etc(compiled):
        class A:
            __slots__ = ("a", "__weakref__")

        f = compiled(lambda a, x: x * getattr(a, "a", 3))
        a = A()
        yield attempt(f, a, vector())
        a.a = 2
        yield f(a, vector())
        del a.a
        yield attempt(f, a, vector())

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

    def bool_len_added(compiled):
        class A:
            pass

        f = compiled(lambda a, x: x + 1 if a else x - 1)
        a = A()
        yield f(a, vector())
        A.__bool__ = lambda s: False
        yield f(a, vector())
        del A.__bool__
        yield f(a, vector())
        A.__len__ = lambda s: 0
        yield f(a, vector())

    def objkeys(compiled):
        class K:
            pass

        k1, k2 = (K(), K())

        @compiled
        def f(d, k, x):
            return d[k] + x

        yield f({k1: vector()}, k1, vector()), f({k2: vector() * 2}, k2, vector())
        yield attempt(f, {k2: vector()}, k1, vector()).__class__.__name__
        yield f({k1: vector() * 2, k2: vector()}, k1, vector())

    def tensorkeys(compiled):
        t = vector()
        f = compiled(lambda d, k, x: d[k] + x)
        yield f({t: 1}, t, vector())
        u = vector()
        yield f({u: 5}, u, vector())

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

    def class_freed(compiled):
        def mk():
            class A:
                k = 1

                def m(s, x):
                    return x + s.k

            return A

        f = compiled(lambda a, x: a.m(x))
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
            yield f(vector()), CNT

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
            yield f(vector()), (n, [k() for k in h])

    def closures_returned(compiled):
        @compiled
        def f(x):
            k = 0

            def inc():
                nonlocal k
                k += 1
                return x * k

            get = lambda: k
            inc()
            return (inc, get)

        i, g = f(vector())
        yield g(), i(), g()
        i2, g2 = f(vector())
        yield i2(), (g2(), g())

    def slices(compiled):
        f = compiled(lambda x, s: x[s])
        t = torch.arange(6.0)
        yield f(t, slice(1, 3)), f(t, slice(2, 4)), f(t, slice(None, None, 2)), f(t, 2), f(t, None), f(t, ...)
        yield f(t, torch.tensor([1, 2])), f(t, t > 2), f(t, [0, 1]), f(t, True)

        @compiled
        def g(x, i, v):
            x[i] = v
            return x

        yield g(t.clone(), slice(0, 2), 5), g(t.clone(), slice(0, 2), vector()[:2]), g(t.clone(), 1, 7.0)
        yield g(t.clone(), t > 3, 0)

    def devices_dtypes(compiled):
        f = compiled(lambda x, dt, dev: (x.to(dt), torch.zeros(2, dtype=dt, device=dev)))
        yield f(vector(), torch.float64, "cpu"), f(vector(), torch.int32, "cpu")
        yield f(vector(), torch.float32, torch.device("cpu")), f(vector(), torch.float32, "meta")

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
