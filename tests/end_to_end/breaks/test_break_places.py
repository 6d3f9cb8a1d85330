"""Graph breaks in every kind of place, with effects before and after."""

# The histories keep the style of users, against the advice of linters.

from __future__ import annotations

import contextlib

import torch

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


@histories
class Places:
    def try_break(compiled):
        log = []

        @compiled
        def f(x, bad):
            try:
                y = x + 1
                minidynamo.graph_break()
                if bad:
                    raise ValueError("v")
                y = y * 2
            except ValueError as e:
                log.append(str(e))
                y = x - 1
            else:
                y = y + 10
            finally:
                log.append("fin")
            return y * 3

        for b in (0, 1, 0, 1):
            yield f(vector(), b)
            yield list(log)

    def raise_midway(compiled):
        class S:
            pass

        s = S()
        s.n = 0
        l = []
        d = {}

        @compiled
        def f(x):
            s.n += 1
            l.append(x + 1)
            d["k"] = s.n
            y = x * 2
            if s.n == 2:
                raise KeyError(s.n)
            l.append(y)
            return y[5]

        for _ in range(3):
            yield attempt(f, vector())
            yield (s.n, list(l), dict(d))

    def loops(compiled):
        @compiled
        def f(x, n):
            tot = 0
            for i in range(n):
                if i == 2:
                    continue
                x = x + i
                tot += x.sum().item()
                if tot > 20:
                    break
            else:
                x = x * 100
            return (x, tot)

        for n in (0, 1, 3, 6):
            yield f(vector(), n)

    def while_tensor(compiled):
        @compiled
        def f(x):
            k = 0
            while x.sum() < 50:
                x = x * 2
                k += 1
            return (x, k)

        yield f(vector())
        yield f(vector() * 5)
        yield f(vector() * 100)

    def with_break(compiled):
        log = []

        @contextlib.contextmanager
        def cm(n):
            log.append(("in", n))
            try:
                yield n
            except ZeroDivisionError:
                log.append("caught")
            finally:
                log.append(("out", n))

        class CM:
            def __enter__(s):
                log.append("E")
                return 5

            def __exit__(s, *a):
                log.append(a[0] and a[0].__name__)
                return True

        @compiled
        def f(x, b):
            with cm(1) as n, CM() as k:
                y = x + n + k
                minidynamo.graph_break()
                if b:
                    y = y / [0][b - 1] if False else 1 // 0
            return x * 2

        for b in (0, 1, 0):
            yield attempt(f, vector(), b)
            yield list(log)

    def finally_return(compiled):
        @compiled
        def f(x):
            for i in range(3):
                try:
                    if i == 1:
                        return x + i
                    x = x * 2
                    print(end="")
                finally:
                    x = x + 10
            return x

        yield f(vector())
        yield f(vector())

    def ident_break(compiled):
        @compiled
        def f(x, l):
            y = x + 1
            a = [y]
            b = a
            c = (a, b)
            minidynamo.graph_break()
            a.append(1)
            l.append(a)
            return (b, c, l, y is a[0])

        l = []
        r = f(vector(), l)
        yield r
        yield (r[0] is r[1][0] is r[1][1] is l[0], r[2] is l)

    def mut_break_mut(compiled):
        @compiled
        def f(l, d, x):
            l.append(x + 1)
            d["a"] = len(l)
            minidynamo.graph_break()
            l.append(l[0] * 2)
            d["b"] = d["a"] + 1
            minidynamo.graph_break()
            l.pop(0)
            del d["a"]
            return (l, d)

        l = []
        d = {}
        for _ in range(3):
            yield f(l, d, vector())

    def inplace_break(compiled):
        @compiled
        def f(x, y):
            x.add_(1)
            v = x[1:]
            minidynamo.graph_break()
            v.mul_(2)
            y.copy_(x)
            minidynamo.graph_break()
            y[0] = 9
            return (x, y, v)

        x, y = (vector(), vector())
        yield f(x, y)
        yield (x, y)
        yield f(x, x)
        yield x

    def del_walrus(compiled):
        @compiled
        def f(x):
            if (n := x.shape[0]) > 2:
                y = x * n
                del n
            z = y
            del y
            try:
                n
            except UnboundLocalError:
                z = z + 1
            try:
                y
            except NameError:
                z = z + 1
            return z

        yield f(vector())
        yield attempt(f, torch.ones(1))
