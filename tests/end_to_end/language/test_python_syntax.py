"""Statements and expressions: unpacking, slices, del, formatting, imports, assignment in every form; classes created
inside a compiled function, with one clean break each."""

import functools
import pytest
import torch
from tests.end_to_end.programs import Programs
import ast
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import vector


# ruff: noqa: F401, F525, F821, I001


programs = Programs()
test_same_as_eager = programs.test()


class Thing:
    pass


G1 = 1

K = 3


@programs()
class Cases:
    globals_ = lambda x: x * globals()["K"]
    ellipsis_ = lambda x: (x[...], ..., NotImplemented is None, Ellipsis is ...)

    @programs(graphs=0)
    def starred(x):
        a, *b = (x, 1, 2)
        *c, d = [1, x]
        e, *f, g = range(5)
        return a, b, c, d, e, f, g, [*b, *c], {*f, 1} == {1, 2, 3}, {**{"a": x}, "b": 2}, (*b, *f)

    def star_index(x):
        i = (0, 1)
        t = torch.zeros(2, 3, 4)
        return t[*i] + 1

    def star_nested(x):
        (a, (b, *c)), d = (x, (1, 2, 3)), 4
        for i, (j, *k) in enumerate([(1, 2, 3), (4, 5, 6)]):
            x = x + i + j + sum(k)
        return a, b, c, d, x

    def walrus(x):
        if (n := x.shape[0]) > 3:
            y = x * n
        l = [(q := v) * 2 for v in (1, 2)]
        while (n := n - 1) > 0:
            y = y + n
        return y, l, q

    def chained(x):
        a, b = 1, 5
        return x * (0 < a < b), (a < 10 > b), a == 1 != b, (1 if a < b < 3 else 2), not a < b

    @programs(breaks=None, graphs=None)
    def slices(x):
        l = list(range(10))
        s = slice(1, 5, 2)
        y = l[1:3], l[::2], l[s], l[-3:], l[:], "hello"[1:3], (1, 2, 3)[::-1], x[1:], x[..., None], x[None, :2]
        l[1:3] = [7, 8, 9]
        l[::4] = [0] * len(l[::4])
        del l[2:4]
        l[len(l) :] = [5]
        n = 2
        z = x[:n], x[n:], x[-n:]
        return y, l, z, s.indices(10), s.start

    def augmented(x):
        o = Thing()
        o.v = x
        o.v += 1
        o.n = 3
        o.n **= 2
        l = [1, 2]
        l[0] += 5
        l += [3]
        l *= 2
        d = {"a": 1}
        d["a"] -= 3
        d |= {"b": 2}
        s = {1}
        s |= {2}
        s &= {2, 3}
        s ^= {5}
        t = (1,)
        t += (2,)
        st = "a"
        st += "b"
        k = 7
        k //= 2
        k <<= 2
        k %= 5
        k |= 8
        k &= 15
        k >>= 1
        x = x @ x if x.dim() > 5 else x
        return o.v, o.n, l, d, s == {2, 5}, t, st, k, x

    def dels(x):
        a = x
        del a
        o = Thing()
        o.a = 1
        o.b = 2
        del o.a
        l = [1, 2, 3, 4]
        del l[0]
        del l[1:2]
        d = {"a": 1, "b": 2}
        del d["a"]
        c = x + 1
        f = lambda: c
        r = f()
        del c
        q, w = 1, 2
        del q, (w)
        try:
            a
        except UnboundLocalError:
            r = r + 1
        return r, hasattr(o, "a"), l, d

    def del_cell(x):
        v = x

        def g():
            try:
                return v
            except NameError:
                return x * 5

        a = g()
        del v
        return a, g()

    def globals_w(x):
        global G1
        G1 = G1 + 1
        G1 += 1
        y = x * G1
        G1 = 1
        return y

    def del_global(x):
        global G2
        G2 = 5
        y = x * G2
        del G2
        return y

    def fstrings(x):
        a, b, n = 3.14159, "text", 5
        made = x + 1, f"{a:.2f} {b!r:>10} {n:0{n}d} {a=} {n=!s} {'q'} {b:*^{n * 3}} {x.shape}"
        return *made, f"{x.dtype} {n:,} {b!a} {{}} {[1, 2]} {None} {(1,)}"

    @programs(breaks=None, graphs=None)
    def percent(x):
        made = x + 1, "%s %d %5.2f %r %%" % ("a", 3, 2.5, [1]), "%(k)s" % {"k": 1}, "{} {a} {0!r:>5}".format(1, a=2)
        return *made, "{0.shape}".format(x), "%s" % (x.shape,), "a{:>{w}}".format(3, w=5)

    @programs(graphs=None, breaks=None)
    def imports(x):
        import math
        import os.path as osp
        from functools import reduce, partial as P
        import torch.nn.functional as F
        import collections.abc
        from collections import abc as cabc
        import torch.nn

        made = F.relu(x) * math.pi, osp.join("a", "b"), reduce(lambda a, b: a + b, [1, 2])
        return *made, torch.nn.functional.relu(x), cabc is collections.abc

    def debug_(x):
        if __debug__:
            return x + 1
        return x

    def comp_class_cell(x):
        y = x + 1
        return [(lambda v: v * y)(q) for q in (1, 2)], [y for _ in range(2)]

    def locals_(x):
        a = 1
        y = x * 2
        l = locals()
        return y + l["a"], sorted(l)

    @programs(breaks=1)
    def eval_(x):
        a = 3
        return eval("a + 1") * x

    @programs(breaks=2)  # the tracer does not read inside a namespace
    def exec_(x):
        d = {}
        exec("z = 5", d)
        return x * d["z"]

    @programs(graphs=1, breaks=0)
    def prints(x):
        print("one")
        y = x + 1
        print("two", 3, sep="-")
        return y * 2

    def conditional(x):
        a = x if x.dim() == 1 else None
        b = a is not None and a.shape[0] or 3
        return a * b, (None or 5), (0 and 1), ("" or "d")

    def while_else(x):
        n = 3
        while n:
            n -= 1
            if n == 10:
                break
        else:
            x = x + 1
        for i in (1, 2):
            if i == 2:
                break
        else:
            x = x * 100
        for i in (1, 2):
            if i == 1:
                continue
            x = x + i
        return x

    def multi_assign(x):
        a = b = c = x + 1
        o = Thing()
        o.p = d = [1]
        d.append(2)
        return a is b, c, o.p


class Meta(type):
    pass


NEW_SYNTAX = """
def type_parameters(x):
    def first[T](v: T) -> T:
        return v * 2

    class Box[T]:
        def __init__(self, v: T):
            self.v = v

    return first(x), Box(x).v + 1


def type_alias(x):
    type Number = int | float
    y = x + 1
    return y, Number.__name__


def quotes_in_formatted_text(x):
    d = {"a": 1}
    return x + 1, f"{d["a"]} {f"{1 + 1}"}"
"""


def new_syntax():
    """Runs the programs above on Python versions that know their syntax."""
    namespace = {"torch": torch}
    if hasattr(ast, "TypeAlias"):
        exec(compile(NEW_SYNTAX, __file__, "exec"), namespace)
    return [value for name, value in namespace.items() if name in ("type_parameters", "type_alias") or "text" in name]


@programs(graphs=3, breaks=1)
class ClassStatements:
    # A class is a new object at each call, so the code after the class is compiled again.
    def class_over_variables(x):
        y = x + 1
        n = 2

        class Scale:
            factor = n * 2

            def act(self):
                return y * self.factor * n

        return Scale().act()

    def decorated_with_bases(x):
        y = x * 2

        def marked(cls):
            cls.extra = 5
            return cls

        @marked
        class Table(dict, metaclass=Meta):
            def act(self):
                return y * self.extra

        return Table().act()

    @programs(graphs=2, breaks=2)
    def super_and_class_cell(x):
        class Base:
            def act(self):
                return x + 1

        class Child(Base):
            def act(self):
                return super().act() * 2

            def name(self):
                return __class__.__name__

        return Child().act(), Child().name()

    @programs(graphs=3, breaks=2)
    def made_in_a_callee(x):
        def make(n):
            class Scale:
                def act(self):
                    return n * 2

            return Scale

        return make(x + 1)().act() + 1


def test_new_syntax():
    for program in new_syntax():
        assert_same_as_eager(program, vector, calls=2)
