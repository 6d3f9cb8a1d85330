"""Containers of every class as arguments, changed by the program and between calls."""

from __future__ import annotations

import collections
import contextlib
import itertools

import torch

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


@histories
class Cases:
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
