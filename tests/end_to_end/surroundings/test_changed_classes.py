"""Classes, caches, registries and variables of the interpreter that change between calls."""

from __future__ import annotations

import abc
import threading
import typing
import weakref

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


class State(threading.local):
    """Each thread starts with the values of the class."""

    enabled = True
    depth = 1

    def deepen(self):
        self.depth += 1

    @property
    def twice(self):
        return self.depth * 2

    def __getattr__(self, name):
        if name == "made":
            return self.depth + 100
        raise AttributeError(name)


class Counting(threading.local):
    started = 0

    def __init__(self):
        type(self).started += 1
        self.depth = 2


class Comparing(type):
    """Compares its classes; a class with `__eq__` has no hash."""

    def __eq__(cls, other):
        return cls is other

    __hash__ = None


class Compared(metaclass=Comparing):
    factor = 2


@histories
class Cases:
    def abc_proto(compiled):
        class P(typing.Protocol):
            def m(s, x): ...

        class A(abc.ABC):
            @abc.abstractmethod
            def m(s, x): ...

        class B(A):
            def m(s, x):
                return super().m(x) or x * 3

        f = compiled(lambda b, x: (b.m(x), isinstance(b, A), issubclass(B, A)))
        yield f(B(), vector())

        class Cc:
            pass

        g = compiled(lambda c: isinstance(c, A))
        yield g(Cc())
        A.register(Cc)
        yield g(Cc())

    def isinstance_change(compiled):
        class M(type):
            def __instancecheck__(c, o):
                return c.ok

        class A(metaclass=M):
            ok = True

        f = compiled(lambda x: x + 1 if isinstance(x, A) else x - 1)
        yield f(vector())
        A.ok = False
        yield f(vector())

    def class_var_write(compiled):
        class A:
            n = 0
            l = []

        @compiled
        def f(x):
            A.n += 1
            A.l.append(A.n)
            return x * A.n

        for _ in range(3):
            yield f(vector())
        yield (A.n, A.l)

        @compiled
        def g(s, x):
            s.n += 1
            type(s).n = 100
            return x * s.n

        a = A()
        yield g(a, vector()), (a.n, A.n)

    def dunder_arith(compiled):
        class V:
            def __init__(s, t):
                s.t = t

            def __add__(s, o):
                return V(s.t + (o.t if isinstance(o, V) else o))

            def __radd__(s, o):
                return V(o + s.t * 10)

            def __iadd__(s, o):
                s.t = s.t + o
                return s

            def __getitem__(s, i):
                return s.t[i]

            def __len__(s):
                return 3

            def __contains__(s, v):
                return v == 2

            def __iter__(s):
                return iter([s.t, 1])

            def __call__(s, k):
                return s.t * k

            def __enter__(s):
                return s.t

            def __exit__(s, *a):
                s.t = s.t * 0
                return False

            def __matmul__(s, o):
                return "mm"

            def __neg__(s):
                return V(-s.t)

            def __lt__(s, o):
                return True

            def __format__(s, f):
                return "F" + f

            def __hash__(s):
                return 5

            def __eq__(s, o):
                return isinstance(o, V)

        @compiled
        def f(v, x):
            w = v + 1
            u = 2 + v
            v += x
            with v as q:
                r = q * 2
            made = w.t, u.t, v.t, r, v[0], len(v), 2 in v, list(v), v(3), v @ v
            return *made, (-v).t, v < 1, f"{v:>3}", {v: 1}[V(0)], v == V(1), bool(v)

        yield f(V(vector()), vector()), f(V(vector() + 1), vector())

    def thread_local(compiled):
        tl = threading.local()
        tl.k = 1
        f = compiled(lambda x: x * tl.k)
        yield f(vector())
        tl.k = 2
        yield f(vector())
        r = []

        def w():
            tl.k = 7
            r.append(f(vector()))

        t = threading.Thread(target=w)
        t.start()
        t.join()
        yield r

    def a_class_of_thread_locals(compiled):
        state = State()

        @compiled
        def f(x):
            state.deepen()
            state.last = x * 2
            y = x * state.twice + state.made if state.enabled else x
            return y, getattr(state, "missing", 3), sorted(state.__dict__), state.last

        results = []

        def work():
            results.extend((f(vector()), f(vector())))
            state.depth = 7
            state.enabled = False
            results.append((f(vector()), {**vars(state)}))

        for depth in (2, 3):
            work()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            State.depth = depth
            del state.enabled
        State.depth = 1
        yield results

    def thread_locals_that_start_by_running_code(compiled):
        """The code runs when the program reaches the read, not when guards are checked."""
        Counting.started = 0
        state = Counting()
        f = compiled(lambda x: x * state.depth if x.sum() > 0 else x)

        def work():
            results.extend((f(vector().abs()), Counting.started, f(-vector().abs()), Counting.started))

        results = []
        for _ in range(2):
            work()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        yield results

    def the_names_of_a_thread(compiled):
        tl = threading.local()
        tl.k = 2

        @compiled
        def f(x):
            tl.__dict__["calls"] = tl.__dict__.get("calls", 0) + 1
            return x * tl.__dict__.get("k", 3), "k" in vars(tl), [*tl.__dict__]

        results = []

        def work():
            results.extend((f(vector()), f(vector()), tl.calls))

        for _ in range(2):
            work()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            tl.k += 1
        yield results

    def weakrefs(compiled):
        class O:
            pass

        o = O()
        o.k = 2
        w = weakref.ref(o)
        f = compiled(lambda x: x * w().k if w() is not None else x)
        yield f(vector())
        o.k = 3
        yield f(vector())
        del o
        yield f(vector())

    def props_global(compiled):
        class A:
            @classmethod
            def make(c, x):
                return c().go(x)

            def go(s, x):
                return x + s.off

            off = 1

        class B(A):
            off = 2

        f = compiled(lambda x: A.make(x) + B.make(x))
        yield f(vector())
        B.off = 10
        yield f(vector())
        del B.off
        yield f(vector())
        B.go = lambda s, x: x * 0
        yield f(vector())

    def mro_change(compiled):
        class A:
            k = 1

        class B:
            k = 2

        class D(A):
            pass

        f = compiled(lambda d, x: x * d.k)
        d = D()
        yield f(d, vector())
        D.__bases__ = (B,)
        yield f(d, vector())
        d.__class__ = A
        yield f(d, vector())

        class E(D):
            def m(s):
                return super().k

        g = compiled(lambda e, x: x * e.m())
        e = E()
        yield g(e, vector())
        D.__bases__ = (A,)
        yield g(e, vector())

    def slots_inherit(compiled):
        class A:
            __slots__ = ("a",)

        class B(A):
            __slots__ = ("b", "__dict__")

        @compiled
        def f(o, x):
            o.b = x + o.a
            o.c = 5
            return o.b * o.c

        o = B()
        o.a = 1
        yield f(o, vector()), (o.a, o.b, o.c)
        o.a = 2
        yield f(o, vector())

    def classes_without_a_module(compiled):
        """A call of `type(...)` without a module name in scope creates a class without `__module__`."""

        class A:
            k = 2

        class M(torch.nn.Module):
            k = 3

            def forward(self, x):
                return x * self.k

        names = {"A": A, "M": M, "__builtins__": {}, "type": type}
        small, large = eval("type('Small', (A,), {}), type('Large', (M,), {'k': 5})", names)
        f = compiled(lambda x, o: (x * o.k, isinstance(o, A)))
        yield f(vector(), A()), f(vector(), small()), compiled(large())(vector())
        small.k = 7
        yield f(vector(), small())

    def containers_of_classes_are_replaced(compiled):
        class Doubled(list):
            def __get__(self, instance, owner):
                return [2 * item for item in self]

        class Base:
            pair = (1.0, 2.0)

        class Settings(Base):
            table = {"a": [1.0]}  # noqa: RUF012

        @compiled
        def fn(settings, x):
            return x * settings.pair[0] + Settings.table["a"][-1], settings.pair, len(Settings.table)

        settings = Settings()
        yield fn(settings, vector())
        Base.pair = (3.0, 4.0)
        yield fn(settings, vector())
        Base.pair = [5.0, 6.0, 7.0]
        yield fn(settings, vector())
        Base.pair = Doubled([8.0, 9.0])
        yield fn(settings, vector())
        Settings.pair = (1.5,)
        yield fn(settings, vector())
        settings.pair = (2.5,)
        yield fn(settings, vector())
        del settings.pair, Settings.pair
        Settings.table["a"].append(9.0)
        yield fn(settings, vector())
        Settings.table = {"a": [4.0], "b": 1}
        yield fn(settings, vector())
        Settings.table = property(lambda self: {"a": [4.0]})
        yield attempt(fn, settings, vector())

    def a_class_read_as_a_dict_behind_a_write(compiled):
        class Counter:
            count = 0

        @compiled
        def f(x, name):
            names = vars(Counter)
            setattr(Counter, name, x)
            Counter.count += 1
            return x + 1, [*names][-2:], name in vars(Counter), names["count"], len(names)

        for name in ("one", "two", "one"):
            *found, length = f(vector(), name)
            yield found, length - len(vars(Counter))


def test_classes_that_their_metaclass_compares_run_as_written():
    compiled = minidynamo.compile(lambda x, t: x * t.factor, backend="eager")
    with pytest.warns(MinidynamoNotice, match="MD232 class Compared is compared by its metaclass"):
        assert torch.equal(compiled(torch.ones(2), Compared()), torch.full((2,), 2.0))


def test_instances_of_such_classes_may_go():
    class Owner:
        pass

    def fn(x, owner):
        owner.value = None
        return x + 1

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for value in (None, Compared(), [Compared()]):
        owner = Owner()
        owner.value = value
        assert torch.equal(compiled(torch.ones(2), owner), torch.full((2,), 2.0)) and owner.value is None


def test_what_threads_have_of_their_own_is_in_the_graph():
    state, seen = State(), []

    def program(x):
        state.deepen()
        return x * state.twice + state.made

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        for target in (lambda: seen.append(compiled(torch.ones(1)).item()),) * 2:
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
            target()
    assert seen == [106, 106, 106, 109, 106, 112, 106, 115]
