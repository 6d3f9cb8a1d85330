"""Globals, closures, defaults, classes and imported modules that change between calls."""

from __future__ import annotations

import sys
import types

import torch

from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


G = 2.0


@histories
class Cases:
    def globals_changed(compiled):
        global G
        G = 2.0
        f = compiled(lambda x: x * G)
        yield f(vector())
        G = 3.0
        yield f(vector())
        G = torch.ones(3)
        yield f(vector())
        G = torch.ones(3) * 5
        yield f(vector())
        G = None
        yield attempt(f, vector())
        G = 2.0
        yield f(vector())

    def globals_deleted(compiled):
        g = globals()
        g["TMPV"] = 2
        f = compiled(lambda x: x * TMPV)
        yield f(vector())
        del g["TMPV"]
        yield attempt(f, vector())
        g["TMPV"] = 4
        yield f(vector())

    def shadow_builtin(compiled):
        g = globals()
        f = compiled(lambda x: x * len([1, 2, 3]))
        yield f(vector())
        g["len"] = lambda v: 7
        yield f(vector())
        del g["len"]
        yield f(vector())

    def new_builtin(compiled):
        import builtins

        f = compiled(lambda x: x * mynew)
        yield attempt(f, vector())
        builtins.mynew = 4
        yield f(vector())
        globals()["mynew"] = 5
        yield f(vector())
        del globals()["mynew"]
        yield f(vector())
        del builtins.mynew
        yield attempt(f, vector())

    def inner_cell(compiled):
        def mk():
            k = [1]
            g = lambda x: x * k[0]
            return (g, k)

        g, k = mk()
        f = compiled(lambda x: g(x) + 1)
        yield f(vector())
        k[0] = 5
        yield f(vector())
        k[0] = vector()
        yield f(vector())

    def mutable_default(compiled):
        def f(x, a=[]):
            a.append(1)
            return x * len(a)

        f = compiled(f)
        yield f(vector()), f(vector()), f(vector())

    def monkey_method(compiled):
        class A:
            def m(self, x):
                return x + 1

        a = A()
        f = compiled(lambda x: a.m(x))
        yield f(vector())
        A.m = lambda s, x: x * 5
        yield f(vector())
        a.m = lambda x: x - 1
        yield f(vector())
        del a.m
        yield f(vector())

    def class_attr(compiled):
        class B:
            k = 1

        class A(B):
            pass

        a = A()
        f = compiled(lambda x, a: x * a.k)
        yield f(vector(), a)
        B.k = 2
        yield f(vector(), a)
        A.k = 3
        yield f(vector(), a)
        a.k = 4
        yield f(vector(), a)
        A.k = property(lambda s: 9)
        yield attempt(f, vector(), a)
        del A.k
        yield f(vector(), a)
        del a.k
        yield f(vector(), a)

    def class_attr_tensor(compiled):
        class A:
            t = torch.ones(3)

        a = A()
        f = compiled(lambda x, a: x * a.t)
        yield f(vector(), a)
        A.t = torch.ones(3) * 2
        yield f(vector(), a)
        A.t = torch.ones(3, dtype=torch.float64)
        yield f(vector(), a)

    def getattr_added(compiled):
        class A:
            def __init__(s):
                s.k = 1

        a = A()
        f = compiled(lambda x, a: x * getattr(a, "z", 5) * a.k)
        yield f(vector(), a)
        A.__getattr__ = lambda s, n: 3
        yield f(vector(), a)
        A.__getattribute__ = lambda s, n: 2
        yield f(vector(), a)

    def module_attr(compiled):
        m = types.ModuleType("mymod")
        sys.modules["mymod"] = m
        m.k = 2
        m.g = lambda x: x + 1
        f = compiled(lambda x: m.g(x) * m.k)
        yield f(vector())
        m.k = 3
        yield f(vector())
        m.g = lambda x: x - 1
        yield f(vector())
        del m.k
        yield attempt(f, vector())

    def globals_as_a_dict(compiled):
        """The same variable is written as an item of `globals()` and read by its name."""
        namespace = {"step": 1}
        text = (
            "def f(x):\n"
            "    globals()['step'] = globals()['step'] + 1\n"
            "    return x * step, 'step' in globals(), globals().get('other', 3)\n"
            "def g(x, names):\n"
            "    names['step'] = 10\n"
            "    y = x * step\n"
            "    del names['step']\n"
            "    return y\n"
        )
        exec(text, namespace)
        f, g = compiled(namespace["f"]), compiled(namespace["g"])
        yield f(vector())
        yield f(vector())
        namespace["other"] = 9
        yield f(vector())
        yield g(vector(), namespace), "step" in namespace
        yield attempt(f, vector())
