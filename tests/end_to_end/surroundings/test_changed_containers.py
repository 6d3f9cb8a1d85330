"""Containers of every class as arguments, changed by the program and between calls."""

# The histories keep the style of users, against the advice of linters.

from __future__ import annotations

import collections
import contextlib
import itertools

import torch

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


class L1(list):
    log = []

    def __init__(s, tag=0, n=()):
        super().__init__(n)
        s.tag = tag

    def __getitem__(s, i):
        L1.log.append(i)
        return list.__getitem__(s, i) * 10

    def append(s, v):
        s.cnt = getattr(s, "cnt", 0) + 1
        super().append(v)


@histories
class Cases:
    def ls1(compiled):
        L1.log.clear()
        f = compiled(lambda l: l[0] + l[1])
        l = L1(1, [torch.ones(3), torch.ones(3) * 2])
        yield f(l), list(L1.log), f(l), list(L1.log)

    def ls2(compiled):
        class Bad(list):
            def _r(s, *a):
                raise RuntimeError("no")

            __getitem__ = extend = clear = __setitem__ = _r

        @compiled
        def f(l, x):
            l.append(x + 1)
            l.tag = 2

        l = Bad([vector()])
        f(l, vector())
        yield (len(l), list.__getitem__(l, 1), l.tag)
        f(l, vector())
        yield len(l)

    def ls3(compiled):
        @compiled
        def f(x):
            l = L1("t", [x, x + 1])
            l.append(x * 2)
            l.tag = "u"
            return l

        r = f(vector())
        yield (type(r).__name__, list.copy(r), r.__dict__)

    def ls7(compiled):
        class T(tuple):
            def __getitem__(s, i):
                return tuple.__getitem__(s, i) * 3

            def __len__(s):
                return 7

        @compiled
        def f(l):
            return (l[0], tuple.__getitem__(l, 0), len(l), list(l))

        yield f(T((vector(), 2))), f(T((vector(), 3)))

        @compiled
        def g(x):
            return T((x, x + 1))

        r = g(vector())
        yield (type(r).__name__, tuple.__getitem__(r, 1))

        @compiled
        def h(l):
            return l.pop(7)

        yield attempt(h, L1(0, [1]))

    def dsub(compiled):
        class D(dict):
            def __getitem__(s, k):
                return dict.__getitem__(s, k) * 10

            def __missing__(s, k):
                return 5

            def keys(s):
                return ["zz"]

            def __iter__(s):
                return iter(["qq"])

        @compiled
        def f(d, x):
            d["n"] = x
            return (d["a"] + x, len(d), list(d), d.get("a"), "n" in d, list(d.items()).__len__())

        d = D(a=vector())
        yield f(d, vector()), dict.copy(d), f(d, vector() * 2), attempt(lambda: compiled(lambda d: d["q"])(D()))

        @compiled
        def g(x):
            d = D()
            d["a"] = x
            d.t = 1
            return d

        r = g(vector())
        yield (type(r).__name__, dict.copy(r), r.__dict__)

    def dd(compiled):
        @compiled
        def f(d, x):
            d["l"].append(x)
            d["m"].append(1)
            return len(d["l"])

        d = collections.defaultdict(list)
        yield f(d, vector())
        yield dict(d)
        yield f(d, vector())
        d = collections.defaultdict(lambda: [7])
        yield f(d, vector())
        yield dict(d)
        d = collections.defaultdict(None)
        yield type(attempt(f, d, vector())).__name__

    def counter(compiled):
        @compiled
        def f(x, s):
            c = collections.Counter(s)
            c["a"] += 2
            return (c, x * c["zz"], c.most_common(1))

        yield f(vector(), "abca"), f(vector(), "b")

        @compiled
        def g(c, x):
            c["k"] += 1
            c.update("ab")
            return x * c["k"]

        c = collections.Counter("k")
        yield g(c, vector()), dict(c), g(c, vector()), dict(c)

    def odict(compiled):
        @compiled
        def f(d, x):
            d.move_to_end("a")
            d["z"] = x
            d.popitem(last=False)
            return (list(d), list(reversed(d)))

        d = collections.OrderedDict(a=1, b=2, c=3)
        yield f(d, vector()), list(d.items())
        d.move_to_end("c", last=False)
        yield f(collections.OrderedDict(a=1, b=2), vector())
        e = collections.OrderedDict(a=1, b=2)
        e.move_to_end("a")
        g = compiled(lambda d, x: (list(d), x * sum((i * v for i, v in enumerate(d.values())))))
        yield g(e, vector())
        e.move_to_end("a", last=False)
        yield g(e, vector())

    def deques(compiled):
        @compiled
        def f(d, x):
            d.append(x)
            d.appendleft(1)
            d.rotate(1)
            return (d[0], len(d), d.maxlen)

        d = collections.deque([2, 3])
        yield f(d, vector()), list(d)
        d = collections.deque([2, 3], maxlen=3)
        yield f(d, vector()), list(d)

    def sets_args(compiled):
        @compiled
        def f(s, x):
            s.add(5)
            s |= {6}
            return (x * len(s), 3 in s, sorted(s))

        s = {1, 2}
        yield f(s, vector()), s, f({3}, vector())
        g = compiled(lambda s, x: ([x * v for v in s], x * sum(s)))
        yield g({8, 0}, vector()), g({0, 8}, vector())
        s = {0, 8}
        s2 = {8, 0}
        yield g(s, vector()), g(s2, vector())
        h = compiled(lambda x: ([x * v for v in {3, 1, 2}], list({"b"}), [v for v in frozenset((9, 1, 5))]))
        yield h(vector())

    def lst6(compiled):
        @compiled
        def f(ls, d):
            ls.append(ls[0] * d["k"][1])
            return ls[0] + d["k"][0]

        l = [torch.ones(2), 5, "s"]
        yield f(l, {"k": (1, 3)})
        yield l
        yield f(l, {"k": (1, 3)})
        yield l

    def lst_unused(compiled):
        f = compiled(lambda ls: ls[0] * 2)
        yield f([vector(), vector()]), f([vector(), vector().int()]), f([vector(), torch.ones(5)])
        yield f([vector(), None])

    def listclear(compiled):
        @compiled
        def f(xs):
            a, b, c = xs
            xs.clear()
            o = a + 1
            del a
            minidynamo.graph_break()
            o = o + b
            del b
            xs.append(o)
            return o + c

        for _ in range(2):
            l = [vector(), vector(), vector()]
            yield f(l)
            yield l

        @compiled
        def g(xs):
            a = xs.pop()
            b = xs.pop(0)
            y = a * b
            minidynamo.graph_break()
            return (y + xs[0], xs)

        for _ in range(2):
            l = [vector(), vector() + 1, vector() + 2]
            yield g(l)
            yield l

        @compiled
        def h(xs, ys):
            t = xs[0] + ys[0]
            xs.clear()
            return (t, ys)

        l = [vector(), vector()]
        yield h(l, l)
        l = [vector()]
        m = [vector()]
        yield h(l, m)
        yield (l, m)
        yield h((l := [vector()]), l)

    def list_then_alias(compiled):
        @compiled
        def f(xs, t):
            xs[0].add_(1)
            y = t * 2
            xs.clear()
            return (y, t)

        t = vector()
        yield f([t], t)
        t = vector()
        yield f([vector()], t)
        t = vector()
        yield f([t[:]], t)
        yield f([t, t], t)

    def self_ref(compiled):
        @compiled
        def f(l, x):
            l.append(l)
            return x + len(l)

        l = []
        yield f(l, vector()), l[0] is l

        @compiled
        def g(x):
            l = [x]
            l.append(l)
            d = {"l": l}
            d["d"] = d
            return (l, d)

        l, d = g(vector())
        yield (l[1] is l, d["d"] is d, d["l"] is l)

    def cl7(compiled):
        @compiled
        def f(x):
            g = lambda: v
            try:
                g()
            except NameError:
                x = x + 1
            v = 5
            r = x * g()
            del v
            try:
                g()
            except NameError:
                r = r + 1
            return r

        yield f(vector())
        yield f(vector())

    def cl_late(compiled):
        @compiled
        def f(x):
            a = [lambda i=i: x * i for i in range(3)]
            b = [lambda: x * i for i in range(3)]
            return ([h() for h in a], [h() for h in b])

        yield f(vector())

    def exc_types(compiled):
        @compiled
        def f(x, k):
            if k == 0:
                return x[10]
            if k == 1:
                return x + torch.ones(7)
            if k == 2:
                return {}[x.shape]
            if k == 3:
                return x.nope
            if k == 4:
                return None + x
            if k == 5:
                return [].pop()
            if k == 6:
                raise KeyError("q") from ValueError("z")
            if k == 7:
                raise AssertionError("msg")
            if k == 8:
                return undefined_name
            if k == 9:
                return int("z")
            if k == 10:
                return x.view(7)
            if k == 11:
                return torch.nn.functional.linear(x, x, x, x)
            if k == 12:
                return (lambda a: a)()
            if k == 13:
                a, b = x
                return a
            if k == 14:
                return 1 // 0
            if k == 15:
                del x
                return x
            if k == 16:
                return len(5)
            if k == 17:
                return next(iter([]))
            if k == 18:
                raise StopIteration(4)

        for k in range(19):
            e = attempt(f, vector(), k)
            tb = e.__traceback__
            lines = []
            while tb:
                lines.append((tb.tb_lineno,)) if tb.tb_frame.f_code.co_filename == __file__ else None
                tb = tb.tb_next
            yield (k, type(e).__name__, str(e), lines[-1], repr(e.__cause__))
        for k in range(19):
            e = attempt(f, vector(), k)
            yield (k, type(e).__name__, str(e))

    def stopiter(compiled):
        @compiled
        def f(it, x):
            out = []
            while True:
                try:
                    v = next(it)
                except StopIteration:
                    break
                out.append(x * v)
            return out

        yield f(iter([1, 2]), vector()), f(iter([]), vector()), f(iter((1, 2, 3)), vector())
        yield f(iter(range(2)), vector()), f(iter({1: 2}), vector())

    def generator_fn(compiled):
        def gen(x, n):
            for i in range(n):
                got = yield (x * i)
                if got:
                    x = x + got

        f = compiled(lambda x: (list(gen(x, 3)), sum(gen(x, 2))))
        yield f(vector())

        @compiled
        def g(x):
            it = gen(x, 5)
            a = next(it)
            b = it.send(2)
            minidynamo.graph_break()
            return (a, b, list(it))

        yield g(vector()), g(vector())

        @compiled
        def h(x):
            it = gen(x, 3)
            next(it)
            return it

        yield list(h(vector())), list(h(vector()))

    def itertools_arg(compiled):
        f = compiled(lambda it, x: x * next(it))
        c = itertools.count(1)
        yield f(c, vector()), f(c, vector()), next(c)
        c = itertools.cycle([1, 2])
        yield f(c, vector()), f(c, vector()), f(c, vector())

    def printing(compiled):
        import io

        @compiled
        def f(x):
            print("hi", x.shape)
            y = x + 1
            print(y.sum())
            return y

        for _ in range(2):
            b = io.StringIO()
            with contextlib.redirect_stdout(b):
                r = f(vector())
            yield (r, b.getvalue())
