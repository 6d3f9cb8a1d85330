"""Deaths of the objects that a compiled function holds: they die with the function, without a garbage collection.

Training loops collect at chosen steps, or never.
"""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

import minidynamo


class Owner:
    def __init__(self, held):
        self.held = held

    def method(self, x):
        return x * self.held[0]


class Ways:
    """Ways to use a function that holds `t`, by the compiler `c`, which is the identity for eager."""

    def second_size(c, t):
        g = c(lambda x: x * t[0] * x.shape[0])
        g(torch.ones(3)), g(torch.ones(4))

    def graph_break(c, t):
        def f(x):
            y = x * t[0]
            minidynamo.graph_break()
            return y + t[1]

        g = c(f)
        g(torch.ones(3)), g(torch.ones(4))

    def breaks_in_a_loop(c, t):
        def f(x):
            for _ in range(3):
                x = x * t[0]
                minidynamo.graph_break()
            return x

        c(f)(torch.ones(3))

    def break_in_a_callee(c, t):
        def inner(x):
            minidynamo.graph_break()
            return x * t[0]

        g = c(lambda x: inner(x) + 1)
        g(torch.ones(3)), g(torch.ones(5))

    def hook(c, t):
        def f(x):
            y = x * 2
            y.register_hook(lambda gradient: gradient * t[0])
            return y * 3

        c(f)(torch.ones(3, requires_grad=True)).sum().backward()

    def error(c, t):
        def f(x):
            y = x * t[0]
            if x.shape[0] == 3:
                raise ValueError
            return y

        g = c(f)
        g(torch.ones(4))
        with contextlib.suppress(ValueError):
            g(torch.ones(3))

    def error_of_the_graph(c, t):
        g = c(lambda x, i: x * t[0] + t[i])
        for index in (1, 5000):
            with contextlib.suppress(IndexError):
                g(torch.ones(4), torch.tensor(index))

    def backward(c, t):
        c(lambda x: (x * t[:3]).sin())(torch.ones(3, requires_grad=True)).sum().backward()

    def double_backward(c, t):
        x = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(c(lambda x: (x * t[:3]).sin())(x).sum(), x, create_graph=True)
        first.sum().backward()

    def module(c, t):
        module = torch.nn.Linear(2, 2)
        module.register_buffer("held", t)
        g = c(module)
        g(torch.ones(1, 2)).sum().backward(), g(torch.ones(2, 2))

    def method(c, t):
        g = c(Owner(t).method)
        g(torch.ones(3)), g(torch.ones(4))

    def questions(c, t):
        g = c(lambda x: x * t[0])
        g(torch.ones(3))
        if hasattr(g, "explain"):
            str(g.explain()), g.guards(), g.code(), g.why()

    def reset(c, t):
        g = c(lambda x: x * t[0])
        g(torch.ones(3))
        if hasattr(g, "reset"):
            g.reset()
        g(torch.ones(3))

    def uncompile(c, t):
        g = c(lambda x: x * t[0])
        g(torch.ones(3))
        if hasattr(g, "reset"):
            minidynamo.uncompile(g)(torch.ones(3))

    def frozen(c, t):
        g = c(lambda x: x * t[0])
        g(torch.ones(3))
        if hasattr(g, "reset"):
            minidynamo.freeze(g)(torch.ones(3))


def is_alive_after(way, compiler):
    t = torch.zeros(1000)
    way(compiler, t)
    held = weakref.ref(t)
    del t
    return held() is not None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", [name for name in vars(Ways) if name[0] != "_"])
def test_what_a_function_holds_dies_without_a_collection(name, backend):
    way, compiler = vars(Ways)[name], minidynamo.compile(backend=backend)
    is_alive_after(way, compiler)  # what the process compiles once may collect garbage of its own
    gc.collect()
    gc.disable()
    try:
        assert not is_alive_after(way, lambda f: f)
        assert not is_alive_after(way, compiler)
    finally:
        gc.enable()
