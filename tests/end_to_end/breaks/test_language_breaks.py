"""Functions, cells, unpacking, deletion and formatting, each with graph breaks in the middle."""

# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B007, B008, E741, B023, E731, F821, F841, PLC0415, SIM, PLW0603, RUF

import functools

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class C:
    def __init__(self, v):
        self.v = v

    def go(self, n):
        minidynamo.graph_break()
        return self.v * n


class D(C):
    def go(self, n):
        r = super().go(n)
        minidynamo.graph_break()
        return r + super().go(n + 1) + len(__class__.__name__)


@programs(breaks=2)
class BreaksInTheMiddle:
    def cell_across(x):
        n = 0

        def inc(k=1):
            nonlocal n
            n += k
            return n

        inc()
        minidynamo.graph_break()
        inc(2)
        f = lambda: n * x
        minidynamo.graph_break()
        n += 10
        return f(), n, inc()

    @programs(graphs=3, breaks=4)
    def break_in_inner(x):
        n = 1

        def g(v):
            nonlocal n
            n += 1
            minidynamo.graph_break()
            n *= 3
            return v + n

        y = g(x)
        return y * n, g(y)

    @programs(graphs=None, breaks=None)
    def cell_loop(x):
        fs = []
        for i in range(3):

            def f():
                return x * i

            fs.append(f)
            minidynamo.graph_break()
        return [f() for f in fs]

    @programs(graphs=None, breaks=None)
    def comp_break(x):
        def s(v):
            minidynamo.graph_break()
            return v

        return [s(x * i) for i in range(3)], {i: s(x) for i in range(2)}

    @programs(breaks=3)
    def star_break(x):
        def s(*a, **k):
            minidynamo.graph_break()
            return len(a) + len(k)

        return x * s(*[1, 2], 3, a=4, b=5), s(*(x,))

    @programs(graphs=None, breaks=None)
    def cond_break(x):
        y = (x if x.sum() > 0 else -x) + 1
        z = (x.sum() > 0 and x) or y
        return y, z, 1 < x.shape[0] < (5 if x.sum() < 0 else 6)

    @programs(graphs=2, breaks=1)
    def with_break(x):
        with torch.no_grad():
            y = x * 2
            minidynamo.graph_break()
            z = y + torch.is_grad_enabled()
        return z, torch.is_grad_enabled()

    @programs(graphs=3, breaks=2)
    def match_break(x):
        match {"k": [x.sum(), 2]}:
            case {"k": [a, b]} if a > 0:
                return x * b
            case {"k": [a, b], **r}:
                minidynamo.graph_break()
                return x - b, r

    @programs(breaks=1)
    def del_break(x):
        a, b = x + 1, x + 2
        del a
        minidynamo.graph_break()
        try:
            return a
        except UnboundLocalError:
            return b

    @programs(graphs=2, breaks=1)
    def del_cell_break(x):
        a = x + 1

        def g():
            return a

        r = g()
        del a
        minidynamo.graph_break()
        try:
            return g()
        except NameError:
            return r * 2

    @programs(graphs=None, breaks=None)
    def walrus_break(x):
        while (n := int(x.sum().item() * 0) + 3) and (x := x + 1).sum() < 10:
            minidynamo.graph_break()
        return x, n

    def slice_break(x):
        l = list(range(5))
        l[int(x.shape[0]) :] = [minidynamo.graph_break(), 7]
        l[0], l[1:2] = 5, [minidynamo.graph_break()]
        return l, x + 1

    def aug_break(x):
        class_ = functools.partial(int)
        d = {"a": x}
        d["a"] += (minidynamo.graph_break(), 1)[1]
        l = [1]
        l += [minidynamo.graph_break()]
        return d, l

    @programs(graphs=1, breaks=2)
    def fstr_break(x):
        return (
            f"{minidynamo.graph_break()} {x.shape[0]:>{(minidynamo.graph_break(), 5)[1]}} {x.sum().item():.1f}",
            x * 2,
        )

    @programs(graphs=2, breaks=1)
    def global_break(x):
        global QZ
        QZ = x * 2
        minidynamo.graph_break()
        QZ = QZ + 1
        y = QZ
        del QZ
        return y

    @programs(graphs=3, breaks=5)
    def super_break(x):
        return D(x).go(3)

    def try_finally_break(x):
        log = []
        try:
            try:
                minidynamo.graph_break()
                y = x * 2
                raise ValueError("a")
            finally:
                log.append("f")
                minidynamo.graph_break()
        except ValueError as e:
            minidynamo.graph_break()
            log.append(str(e))
        else:
            log.append("no")
        return y, log

    def lambda_default_break(x):
        f = lambda a, b=(minidynamo.graph_break(), 2)[1], *, c=x: a * b + c
        minidynamo.graph_break()
        return f(x), f(x, c=1)

    @programs(graphs=2, breaks=1)
    def closure_escape(x):
        n = x * 2

        def get():
            return n

        def put(v):
            nonlocal n
            n = v

        minidynamo.graph_break()
        put(x * 5)
        return get(), get, put

    @programs(graphs=1, breaks=4)
    def recursion_break(x):
        def f(n):
            if n == 0:
                minidynamo.graph_break()
                return x
            return f(n - 1) + n

        return f(3)

    @programs(breaks=1)
    def import_break(x):
        import json.decoder as jd
        import xml.sax.saxutils
        from json import dumps as d

        minidynamo.graph_break()
        return x * len(d([1])), jd.__name__, xml.sax.saxutils.escape("<")

    @programs(graphs=4, breaks=4)
    def loop_else_break(x):
        for i in range(3):
            if x.sum() > 1e9:
                break
        else:
            x = x + 1
        while x.sum() < -1e9:
            pass
        else:
            x = x * 2
        return x

    @programs(graphs=0, breaks=1)
    def starred_assign_break(x):
        a, *b = [x, (minidynamo.graph_break(), 1)[1], 2]
        (c, d), *e = (b, *b)
        return a, b, c, d, e

    @programs(graphs=1, breaks=3)
    def decorators_break(x):
        def deco(f):
            minidynamo.graph_break()

            @functools.wraps(f)
            def w(*a):
                minidynamo.graph_break()
                return f(*a) + 1

            return w

        @deco
        def g(v):
            return v * 2

        return g(x), g.__name__
