"""Functions, methods and handlers that are called at a break and break themselves."""

# The histories keep the style of users, against the advice of linters.

from __future__ import annotations

import contextlib
import functools
import inspect

import torch

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


@histories
class CalleesThatBreak:
    def callee_break_closure(compiled):
        @compiled
        def f(x):
            def g(y):
                z = y + 1
                minidynamo.graph_break()
                return z * x

            return g(x) + g(x * 2)

        for _ in range(3):
            yield f(vector())

    def callee_many(compiled):
        @compiled
        def f(x):
            def g(y):
                minidynamo.graph_break()
                return y + 1

            return g(x)

        for i in range(15):
            yield f(vector() + i)

    def callee_kwargs(compiled):
        def g(*a, k=1, **kw):
            minidynamo.graph_break()
            return sum(a) * k + sum(kw.values())

        @compiled
        def f(x):
            return (g(x, x, k=2, z=x), g(*[x], k=3), (lambda *a: (minidynamo.graph_break(), a)[1])(1, x))

        yield f(vector())
        yield f(vector())

    def callee_partial(compiled):
        class Counter(torch.nn.Module):
            calls = 0

            def forward(self, x, by=1):
                minidynamo.graph_break()
                self.calls += 1
                return x * by + self.calls

        def g(a, x, *more, k=1, **kw):
            minidynamo.graph_break()
            kw["k"] = k
            return a * x + sum(more) * k, kw

        @compiled
        def f(x, calls):
            return [call(x, **named) for call, named in calls], functools.partial(g, 3)(x)

        module = Counter()
        calls = [
            (functools.partial(g, 2), {}),
            (functools.partial(functools.partial(g, 2, k=5), 3, z=1), {"k": 4}),
            (functools.partial(module, by=2), {}),
            (functools.partial(module.forward), {"by": 3}),
        ]
        for _ in range(3):
            yield f(vector(), calls)
        calls[1][0].keywords["k"] = 7
        yield f(vector(), calls[:2]), module.calls, calls[1][0].keywords
        yield attempt(f, vector(), [(functools.partial(g, 2), {"a": 1})])

    def callee_mutates(compiled):
        log = []

        def g(l, x):
            l.append(x)
            minidynamo.graph_break()
            l.append(x * 2)
            log.append(len(l))
            return l

        @compiled
        def f(x):
            l = [1]
            r = g(l, x)
            l.append(5)
            return (r is l, l)

        yield f(vector())
        yield f(vector())
        yield log

    def callee_raises(compiled):
        def g(x, b):
            minidynamo.graph_break()
            if b:
                raise KeyError("z")
            return x

        @compiled
        def f(x, b):
            try:
                return g(x, b) + 1
            except KeyError as e:
                return (x - 1, e.args)
            finally:
                x = None

        for b in (0, 1, 0, 1):
            yield f(vector(), b)

    def callee_method(compiled):
        class A:
            def __init__(s):
                s.n = 0

            def m(s, x):
                s.n += 1
                minidynamo.graph_break()
                return x * s.n

            @staticmethod
            def st(x):
                minidynamo.graph_break()
                return x + 1

            @classmethod
            def cm(c, x):
                minidynamo.graph_break()
                return (x, c.__name__)

            @property
            def p(s):
                minidynamo.graph_break()
                return s.n

            def __call__(s, x):
                minidynamo.graph_break()
                return x - 1

            def __getitem__(s, i):
                minidynamo.graph_break()
                return i

            def __add__(s, o):
                minidynamo.graph_break()
                return o * 2

            def __enter__(s):
                minidynamo.graph_break()
                return s

            def __exit__(s, *a):
                minidynamo.graph_break()
                s.n += 100

            def __iter__(s):
                minidynamo.graph_break()
                return iter([1, 2])

            def __bool__(s):
                minidynamo.graph_break()
                return True

            def __eq__(s, o):
                minidynamo.graph_break()
                return True

            __hash__ = None

        @compiled
        def f(a, x):
            with a as b:
                y = a.m(x) + A.st(x)
            return (y, A.cm(x), a.p, a(x), a[3], a + x, list(a), [v for v in a], 5 if a else 6, a == 1)

        a = A()
        yield f(a, vector())
        yield f(a, vector())
        yield a.n

    def nested_loops(compiled):
        @compiled
        def f(x):
            out = []
            for i in range(3):
                for j in "ab":
                    if i == 1 and j == "b":
                        break
                    out.append((i, j))
                    x = x + i
                    minidynamo.graph_break()
                else:
                    out.append("else")
                while x.sum() < 3:
                    x = x + 1
            return (x, out)

        yield f(vector())
        yield f(vector())

    def break_in_expr(compiled):
        def g(v):
            minidynamo.graph_break()
            return v

        @compiled
        def f(x):
            return (
                [x, g(x) + 1, {"a": g(2), "b": (x, g(3))}],
                f"{g(1)}-{x.shape[0]}",
                g(x) if g(1) > 0 else 5,
                x[g(0) : g(2)],
                g(1) and g(0) or g(7),
                1 < g(2) < g(3),
                not g(0),
                -g(x),
                [*[1], *g([2, 3])],
                {**g({"q": 1})},
            )

        yield f(vector())
        yield f(vector())

    def break_in_call_args(compiled):
        def g(v):
            minidynamo.graph_break()
            return v

        def h(a, b=0, *c, d=1, **e):
            return (a * b + d, c, e)

        @compiled
        def f(x):
            return (
                h(g(x), g(2), *g([3]), d=g(4), **g({"z": x})),
                torch.add(g(x), g(x), alpha=g(2)),
                x.add(g(1)).mul(g(x)),
                max(g(1), g(2)),
                print(end=g("")),
            )

        yield f(vector())
        yield f(vector())

    def break_in_store(compiled):
        def g(v):
            minidynamo.graph_break()
            return v

        class O:
            pass

        @compiled
        def f(x):
            o = O()
            o.a = g(x)
            d = {}
            d[g("k")] = g(x)
            l = [0, 0]
            l[g(1)] = g(5)
            l[g(0) :] = g([7, 8, 9])
            a, (b, *c) = g((x, (1, 2, 3)))
            o.a += g(1)
            d["k"] *= g(2)
            del d[g("k")]
            del l[g(0)]
            return (o.a, d, l, a, b, c)

        yield f(vector())
        yield f(vector())

    def break_try_variants(compiled):
        def g(v, e=None):
            minidynamo.graph_break()
            if e:
                raise e
            return v

        @compiled
        def f(x, k):
            log = []
            try:
                try:
                    y = g(x, [None, ValueError("a"), KeyError("b"), TypeError("c")][k])
                    log.append("body")
                except ValueError as e:
                    log.append(repr(e))
                    y = x * 2
                except (KeyError, IndexError):
                    log.append("key")
                    raise
                else:
                    log.append("else")
                    y = y + 1
                finally:
                    log.append("fin")
                    g(0)
                y = y * 2
            except KeyError:
                y = x * 5
                log.append("outer")
            return (y, log)

        for k in (0, 1, 2, 0, 1, 2):
            yield f(vector(), k)
        yield attempt(f, vector(), 3)
        yield attempt(f, vector(), 3)

    def exc_groups(compiled):
        @compiled
        def f(x):
            try:
                raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
            except* ValueError as e:
                a = len(e.exceptions)
                minidynamo.graph_break()
            except* KeyError:
                a = 5
            return x + a

        yield f(vector())

    def with_suppress(compiled):
        @compiled
        def f(x, b):
            with contextlib.suppress(ZeroDivisionError):
                y = x + 1
                minidynamo.graph_break()
                if b:
                    1 // 0
                return y
            return x * 7

        for b in (0, 1, 0, 1):
            yield f(vector(), b)

    def with_multi(compiled):
        log = []

        class M:
            def __init__(s, n, sw=False):
                s.n = n
                s.sw = sw

            def __enter__(s):
                log.append(("in", s.n))
                minidynamo.graph_break()
                return s.n

            def __exit__(s, t, v, tb):
                log.append(("out", s.n, t and t.__name__))
                minidynamo.graph_break()
                return s.sw

        @compiled
        def f(x, e):
            with M(1, True) as a, M(2) as b:
                y = x * a + b
                minidynamo.graph_break()
                if e:
                    raise ValueError("q")
                return y
            return x

        for e in (0, 1):
            yield f(vector(), e)
            yield list(log)
            log.clear()

    def closure_cells_break(compiled):
        @compiled
        def f(x):
            n = 0
            acc = []

            def inc(v):
                nonlocal n
                n += v
                acc.append(n)
                return n

            inc(1)
            minidynamo.graph_break()
            inc(2)
            m = n
            minidynamo.graph_break()
            n = 100
            return (inc(1), m, acc, x * n, inc)

        r = f(vector())
        yield r[:4]
        yield r[4](5)
        r = f(vector())
        yield r[:4]
        yield r[4](7)

    def unbound_after(compiled):
        @compiled
        def f(x, b):
            if b:
                y = 1
            minidynamo.graph_break()
            return x * y

        yield f(vector(), 1)
        yield attempt(f, vector(), 0)
        yield f(vector(), 1)
        yield attempt(f, vector(), 0)

    def unbound_cell(compiled):
        @compiled
        def f(x, b):
            def g():
                return y

            if b:
                y = 1
            minidynamo.graph_break()
            return x * g()

        yield f(vector(), 1)
        yield attempt(f, vector(), 0)
        yield f(vector(), 1)

    def locals_call(compiled):
        @compiled
        def f(x, k=3):
            y = x + 1
            d = dict(locals())
            minidynamo.graph_break()
            return (sorted(d), sorted(locals()), y)

        yield f(vector())
        yield f(vector())

    def global_del(compiled):
        @compiled
        def f(x):
            global ZZ
            ZZ = x
            minidynamo.graph_break()
            y = ZZ + 1
            del ZZ
            return (y, "ZZ" in globals())

        yield f(vector())
        yield f(vector())

    def tensor_bool_ops(compiled):
        @compiled
        def f(x, y):
            if x.sum() > 2 and (not y.any()):
                return x + 1
            if x.sum() > 2 or y.sum():
                return x + 2
            return 1 if x.max() else 2

        for a in (vector(), torch.zeros(3)):
            for b in (torch.zeros(3), torch.ones(3)):
                yield f(a, b)


def with_another_signature(fn):
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    wrapper.__signature__ = inspect.signature(lambda tensor: None)
    return wrapper


@with_another_signature
def decides(tensor):
    return tensor + 1 if tensor.sum() > 0 else tensor - 1


@histories
def a_signature_that_the_code_does_not_have(compiled):
    f = compiled(lambda x: decides(x) * 2 + with_another_signature(lambda y: y.sum().item() + 1)(x))
    for x in (vector(), -vector()):
        yield f(x)
