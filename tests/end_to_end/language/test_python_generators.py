# ruff: noqa: F821

import contextlib
import functools
import itertools

import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


def count(n):
    for i in range(n):
        yield i


class Holder:
    pass


class Bag:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        for i in self.items:
            yield i

    def pairs(self):
        for i in self.items:
            yield i + 1


class Src:
    def __init__(self, x):
        self.x, self.k, self.n = x, 2, 0

    def rows(self):
        while True:
            self.n += 1
            yield self.x * self.k


class Base2:
    def __init__(self, x):
        self.x = x

    def rows(self):
        yield self.x
        yield self.x * 2


class Sub2(Base2):
    def rows(self):
        yield from super().rows()
        yield __class__.__name__


@programs()
class Cases:
    gen_count_zip = lambda x: [x * i + j for i, j in zip(itertools.count(1), (1, 2, 3))]
    gen_map_enumerate = lambda x: [a + b for a, b in enumerate(map(lambda v: v * x, count(3)))]
    gen_dict_set = lambda x: ({i: x * i for i in count(2)}, set(count(3)), dict((i, x) for i in count(2)))
    gen_reduce = lambda x: functools.reduce(lambda a, b: a + b, (x * i for i in range(3)))
    gen_first_of = lambda x: next(x * i for i in range(5) if i > 2)
    gen_nested_genexp = lambda x: sum(sum(x * i * j for i in range(2)) for j in range(3))
    gen_tensor_iter = lambda x: ([v * 2 for v in x], sum(v for v in x), [a + b for a, b in zip(x, x.flip(0))])

    @programs(breaks=None)
    def expressions(x):
        made = sum(x * i for i in range(3)), any(i > 1 for i in range(3)), max(i for i in (1, 3, 2))
        return *made, list(i + 1 for i in (1, 2))

    @programs(breaks=None)
    def joined_text(x):
        return x + 1, ",".join(str(i) for i in range(3)), dict((k, 1) for k in "ab"), tuple(i for i in "xy")

    @programs(breaks=None)
    def functions(x):
        total = x
        for i in count(3):
            total = total + i
        return total, list(count(2)), [a * b for a, b in zip(count(3), count(4))]

    @programs(breaks=None)
    def laziness(x):
        log = []

        def notes():
            for i in range(5):
                log.append(i)
                yield i

        g = notes()
        first = next(g)
        return x + first, log, next(g), list(zip(range(2), g)), next(g)

    @programs(breaks=None)
    def one_that_stops_early(x):
        def pairs():
            yield x + 1
            yield x + 2
            return

        a, b = pairs()
        return a, b, all(v is not None for v in pairs())

    def gen_infinite_islice(x):
        def nat():
            n = 0
            while True:
                yield n
                n += 1

        return [x * i for i in itertools.islice(nat(), 3)]

    def gen_in_object(x):
        h = Holder()
        h.g = count(3)
        a = next(h.g)
        return x + a + next(h.g)

    def gen_tensor_list(x):
        made = torch.stack([x * i for i in count(3)]), torch.cat(list(x for _ in range(2)))
        return *made, torch.stack(tuple(x * i for i in count(2)))

    def gen_unpack(x):
        a, *b = (x * i for i in range(3))
        return a, b, [*count(2), *count(3)], (*count(2),)

    def gen_call_star(x):
        f = lambda *a: sum(a)
        return f(*(x * i for i in range(3)))

    def gen_two_at_once(x):
        g = count(6)
        return [(a, b) for a, b in zip(g, g)], x + 1

    def gen_chain(x):
        return [x * v for v in itertools.chain(count(2), (5,), count(1))], [
            x + v for v in itertools.chain.from_iterable([count(2), count(1)])
        ]

    def gen_method(x):
        class_ = Bag([1, 2])
        return [x * v for v in class_], sum(v for v in class_.pairs())

    def gen_isgen(x):
        import types

        g = count(2)
        return isinstance(g, types.GeneratorType), type(g) is types.GeneratorType, iter(g) is g, x + 1

    def esc_with_locals(x):
        y = x * 3

        def g(a, b=2, *c, d, **e):
            t = a
            for i in range(3):
                t = t + i
                try:
                    s = yield t * b
                    if s is not None:
                        t = t + s
                finally:
                    t = t + 1

        it = g(y, 3, 4, d=x, z=1)
        r = next(it)
        r2 = it.send(x)
        return r, r2, it

    @programs(breaks=3)
    def esc_comp(x):
        def g():
            k = [i * 2 for i in range(3)]
            for j in k:
                yield x * j
                k.append(1) if len(k) < 5 else None

        it = g()
        a = next(it)
        minidynamo.graph_break()
        print("b")
        b = next(it)
        return a, b, list(it)

    @programs(breaks=2)
    def esc_finished(x):
        it = count(2)
        l = list(it)
        minidynamo.graph_break()
        print("b")
        return x + 1, list(it), it

    @programs(breaks=2)
    def esc_cell(x):
        n = 0

        def g():
            nonlocal n
            while n < 5:
                n += 1
                yield x * n

        it = g()
        a = next(it)
        n = 3
        minidynamo.graph_break()
        print("b")
        b = next(it)
        return a, b, n, it

    @programs(graphs=0, breaks=2)
    def esc_self(x):
        h = Holder()

        def g():
            yield h
            yield x

        h.it = g()
        next(h.it)
        minidynamo.graph_break()
        print("z")
        return next(h.it), h.it

    def th_unstarted(x):
        def outer():
            yield x

        g = outer()
        try:
            g.throw(KeyError("q"))
        except KeyError as e:
            return x + 1, e.args, list(g)

    def pingpong(x):
        log = []

        def a():
            while True:
                v = yield
                log.append(("a", v))
                if v > 3:
                    return
                try:
                    gb.send(v + 1)
                except StopIteration:
                    log.append("b ended")
                    return

        def b():
            while True:
                v = yield
                log.append(("b", v))
                if v > 5:
                    return

        ga, gb = a(), b()
        next(ga)
        next(gb)
        ga.send(1)
        try:
            ga.send(3)
            ga.send(5)
        except StopIteration:
            log.append("a ended")
        return x + len(log), log

    @programs(breaks=2)
    def esc_nested(x):
        def walk(t):
            if isinstance(t, tuple):
                for s in t:
                    yield from walk(s)
            else:
                yield x * t

        w = walk((1, (2, (3, 4)), 5))
        a, b = next(w), next(w)
        minidynamo.graph_break()
        return a, b, list(w)

    @programs(breaks=2)
    def esc_enum_zip(x):
        def g():
            for i, (a, b) in enumerate(zip([1, 2, 3], (x * k for k in range(3)))):
                with contextlib.suppress(KeyError):
                    yield a * b + i

        w = g()
        a = next(w)
        minidynamo.graph_break()
        print("b")
        return a, list(w)

    @programs(breaks=3)
    def esc_method(x):
        class_ = Src(x)
        it = class_.rows()
        a = next(it)
        class_.k = 5
        minidynamo.graph_break()
        b = next(it)
        class_.k = 7
        return a, b, next(it), class_.n

    @programs(graphs=0, breaks=3)
    def esc_two_share(x):
        l = []

        def g(tag):
            for i in range(3):
                l.append((tag, i))
                yield x * i

        a, b = g("a"), g("b")
        next(a)
        next(b)
        next(a)
        minidynamo.graph_break()
        r = [next(a), next(b)]
        return r, l, a, b

    @programs(graphs=0, breaks=3)
    def esc_in_list(x):
        def g(n):
            for i in range(n):
                yield i * x

        gs = [g(2), g(3)]
        next(gs[1])
        d = {"g": gs[0]}
        minidynamo.graph_break()
        return list(gs[1]), list(d["g"]), gs[0] is d["g"]

    @programs(graphs=0, breaks=3)
    def esc_same_twice(x):
        def g():
            yield x
            yield x + 1
            yield x + 2

        it = g()
        h = Holder()
        h.it = it
        next(it)
        minidynamo.graph_break()
        return next(h.it), next(it), h.it is it

    @programs(graphs=0, breaks=2)
    def genexp_arg_mutated(x):
        l = [1, 2]
        it = (x * v for v in l)
        l.append(3)
        minidynamo.graph_break()
        l.append(4)
        return list(it)

    @programs(graphs=0, breaks=2)
    def gen_arg_iter_advanced(x):
        src = iter([1, 2, 3])
        it = (x * v for v in src)
        next(src)
        minidynamo.graph_break()
        return list(it)

    @programs(breaks=3)
    def gen_arg_iter_shared_started(x):
        src = iter([1, 2, 3, 4])
        it = (x * v for v in src)
        a = next(it)
        next(src)
        minidynamo.graph_break()
        return a, list(it), list(src)

    def gen_globals(x):
        global Q1

        def g():
            global Q1
            for i in range(3):
                Q1 = i
                yield x * i

        out = [(v, Q1) for v in g()]
        return out

    @programs(breaks=3)
    def gen_print_each(x):
        def g():
            for i in range(2):
                minidynamo.graph_break()
                print("a", i)
                yield x * i
                minidynamo.graph_break()
                print("b", i)

        for v in g():
            minidynamo.graph_break()
            print("body")
            x = x + v
        return x

    @programs(graphs=0, breaks=2)
    def gen_kwargs(x):
        def g(*a, k=1, **kw):
            yield a
            yield k
            yield kw

        it = g(x, 2, k=3, z=x)
        minidynamo.graph_break()
        return list(it)

    @programs(graphs=0, breaks=2)
    def gen_kwargs_started(x):
        def g(*a, k=1, **kw):
            yield a
            yield k
            yield kw

        it = g(x, 2, k=3, z=x)
        next(it)
        minidynamo.graph_break()
        return list(it)

    @programs(graphs=0, breaks=2)
    def gen_class_cell(x):
        c = Sub2(x)
        it = c.rows()
        a = next(it)
        minidynamo.graph_break()
        return a, list(it)

    @programs(breaks=2)
    def gen_param_cell(x):
        def g(v):
            inner = lambda: v * 2
            yield inner()
            v = v + 1
            yield inner()

        it = g(x)
        a = next(it)
        minidynamo.graph_break()
        return a, list(it)

    @programs(breaks=2)
    def gen_listcomp_inside(x):
        def g(n):
            y = x
            yield [y * i for i in range(n)]
            yield {i: (lambda: y * i)() for i in range(n)}

        it = g(2)
        a = next(it)
        minidynamo.graph_break()
        return a, list(it)

    @programs(graphs=0, breaks=6)
    def yield_in_expr(x):
        def g():
            t = (1, (yield x), [(yield x + 1)], {"k": (yield 3)})
            yield t

        it = g()
        next(it)
        it.send("a")
        minidynamo.graph_break()
        it.send("b")
        return it.send("c"), list(it)

    @programs(graphs=0, breaks=5)
    def yield_in_call(x):
        f = lambda a, b, *, c: (a, b, c)

        def g():
            yield f(1, (yield x), c=(yield x * 2))

        it = g()
        a = next(it)
        minidynamo.graph_break()
        b = it.send("s")
        c = it.send("t")
        return a, b, c

    @programs(graphs=0, breaks=5)
    def yield_in_subscript(x):
        def g():
            d = {}
            d[(yield 1)] = yield x
            d["z"] = d.get((yield 2), 0)
            yield d

        it = g()
        r = [next(it)]
        r.append(it.send("v"))
        minidynamo.graph_break()
        r.append(it.send("k"))
        r.append(it.send("q"))
        return r

    @programs(graphs=0, breaks=3)
    def async_thing(x):

        async def f():
            return x + 1

        c = f()
        try:
            c.send(None)
        except StopIteration as e:
            return e.value

    @programs(graphs=2, breaks=3)
    def contextmanager_break(x):
        log = []

        @contextlib.contextmanager
        def cm(v):
            log.append("in")
            try:
                yield v * 2
            finally:
                log.append("out")

        with cm(x) as a, cm(a) as b:
            minidynamo.graph_break()
            y = a + b
            log.append("mid")
        return y, log

    @programs(breaks=2)
    def contextmanager_break_err(x):
        log = []

        @contextlib.contextmanager
        def cm(v):
            log.append("in")
            try:
                yield v * 2
            except ValueError as e:
                log.append(str(e))
            finally:
                log.append("out")

        with cm(x) as a:
            minidynamo.graph_break()
            raise ValueError("u")
        return a, log

    def reversed_and_gen(x):
        return [x * i for i in reversed(list(i for i in range(3)))], sorted((i for i in (3, 1)), reverse=True)

    def gen_nograd_full(x):
        def g():
            with torch.no_grad():
                yield x * 2
                yield torch.is_grad_enabled()

        return list(g()), torch.is_grad_enabled(), x * 3

    def gen_nograd_interleave(x):
        x = x.clone().requires_grad_() if False else x

        def g():
            with torch.no_grad():
                yield torch.is_grad_enabled()
            yield torch.is_grad_enabled()

        out = []
        for v in g():
            out.append((v, torch.is_grad_enabled()))
        return out, x + 1


@programs(graphs=0)
class CasesWithoutAGraph:
    def gen_unpack_lazy(x):
        log = []

        def g():
            n = 0
            while True:
                log.append(n)
                yield x * n
                n += 1

        try:
            a, b = g()
        except ValueError as e:
            return log, str(e)

    def cl_ignored(x):
        def outer():
            try:
                yield x
            except GeneratorExit:
                yield 2

        g = outer()
        a = next(g)
        try:
            g.close()
        except RuntimeError as e:
            return a, str(e), next(g, 9)

    def cl_returns(x):
        def outer():
            try:
                yield x
            except GeneratorExit:
                return 2

        g = outer()
        a = next(g)
        return a, g.close()

    def cl_raises(x):
        def outer():
            try:
                yield x
            finally:
                raise KeyError(3)

        g = outer()
        a = next(g)
        try:
            g.close()
        except KeyError as e:
            return a, e.args

    def while_sentinel(x):
        def g():
            yield x
            yield None
            yield x

        it = g()
        out = []
        while (v := next(it)) is not None:
            out.append(v)
        return out, next(it), next(it, "end")
