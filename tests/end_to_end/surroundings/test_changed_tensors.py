"""Tensors that the program writes to, views, aliases and differentiates, from call to call."""

from __future__ import annotations

import torch
from torch import nn

from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test("aot_eager")


@histories
class Cases:
    def requires_grad_inplace(compiled):
        @compiled
        def f(x):
            y = x * 2
            y.requires_grad_()
            z = y * 3
            return (y, z)

        yield f(vector()), f(vector())

        @compiled
        def g(x):
            x.requires_grad_(True)
            return x * 2

        t = vector()
        yield g(t), t, g(t)
        h = compiled(lambda x: x.detach().requires_grad_() * 2)
        yield h(vector())

    def detach_alias(compiled):
        @compiled
        def f(x):
            d = x.detach()
            d.add_(1)
            return (d, x * 2)

        t = vector().requires_grad_()
        yield f(t), t
        u = vector()
        yield f(u), u

    def data_attr(compiled):
        @compiled
        def f(x):
            x.data = x.data * 2
            return x + 1

        t = vector()
        yield f(t), t

        @compiled
        def g(x):
            x.data.add_(1)
            return x * 2

        p = nn.Parameter(vector())
        yield g(p), p

        @compiled
        def h(p, v):
            p.data.copy_(v)
            return p.sum()

        yield h(p, vector() * 5), p

    def grad_write(compiled):
        @compiled
        def f(x):
            x.grad = x.detach() * 2
            return x + 1

        p = nn.Parameter(vector())
        yield f(p), p.grad, f(p)

        @compiled
        def g(x):
            x.grad = None
            return x + 1

        yield g(p), p.grad

        @compiled
        def h(x):
            x.grad.mul_(2) if x.grad is not None else None
            return x

        p.grad = vector()
        yield h(p), p.grad

    def backward_inside(compiled):
        @compiled
        def f(x):
            y = (x * x).sum()
            y.backward()
            return x.grad

        p = nn.Parameter(vector())
        yield f(p)
        yield f(p)
        g = compiled(lambda x: torch.autograd.grad((x * x).sum(), x)[0])
        yield g(p)

    def train_step(compiled):
        torch.manual_seed(0)
        m = nn.Linear(3, 2)
        o = torch.optim.Adam(m.parameters(), lr=0.1)

        @compiled
        def step(x):
            o.zero_grad()
            l = m(x).pow(2).sum()
            l.backward()
            o.step()
            return l.detach()

        for _ in range(4):
            yield step(vector())
        yield m.weight

    def tensor_attrs(compiled):
        @compiled
        def f(x):
            x.foo = 5
            return x * x.foo

        t = vector()
        yield f(t)
        yield t.foo
        yield attempt(f, t)
        g = compiled(lambda x: x * getattr(x, "bar", 2))
        u = vector()
        yield g(u)
        u.bar = 7
        yield g(u)
        del u.bar
        yield g(u)
        h = compiled(lambda x: (hasattr(x, "zip"), x.__dict__ if False else 0))
        yield h(u)
        u.zip = 1
        yield h(u)

    def views_mut(compiled):
        @compiled
        def f(x):
            v = x.view(-1)
            v[0] = 9
            w = x[1:]
            w.mul_(2)
            return (x, v, w)

        t = torch.arange(4.0)
        r = f(t)
        yield r
        r[1][3] = 100
        yield (r, t)

        @compiled
        def g(x):
            y = x.clone()
            v = y[1:]
            return (y, v)

        a, b = g(t)
        b.add_(50)
        yield (a, b)

    def out_alias(compiled):
        @compiled
        def f(x):
            y = x + 1
            return (y, y, y[:], y.view(3), x, x[:], x.T)

        t = vector()
        r = f(t)
        yield (r[0] is r[1], r[4] is t)
        r[2].zero_()
        r[5].fill_(8)
        yield r, t

    def nograd_view(compiled):
        @compiled
        def f(x):
            with torch.no_grad():
                v = x[1:]
            return (v * 2, v)

        p = nn.Parameter(vector())
        yield f(p)

    def resize(compiled):
        @compiled
        def f(x):
            y = torch.empty(0)
            y.resize_(3).copy_(x)
            x.unsqueeze_(0)
            return (y, x)

        t = vector()
        yield f(t)
        yield t
        yield f(vector())

        @compiled
        def g(x):
            x.t_()
            return (x.shape, x)

        t = torch.ones(2, 3)
        yield g(t)
        yield t.shape
        yield g(t)
        yield t.shape

        @compiled
        def h(x):
            x.set_(torch.ones(2))
            return x * 2

        t = vector()
        yield attempt(h, t)
        yield t

    def out_kwarg(compiled):
        @compiled
        def f(x, o):
            torch.add(x, 1, out=o)
            return o * 2

        o = torch.empty(3)
        yield f(vector(), o), o
        o2 = torch.empty(0)
        yield f(vector(), o2), o2

    def inplace_ops(compiled):
        @compiled
        def f(x, i):
            x[i] += 5
            x[x > 3] = 0
            x.index_add_(0, i, torch.ones(2))
            x.scatter_(0, torch.tensor([0]), 9.0)
            return x

        t = torch.arange(6.0)
        yield f(t, torch.tensor([1, 2])), t

        @compiled
        def g(x, y):
            x += y
            x *= x
            x -= 1
            x /= 2
            x **= 2
            x //= 2
            x %= 3
            return x

        t = vector()
        r = g(t, vector())
        yield (r, r is t)

    def views_and_shared_memory(compiled):
        f = compiled(lambda x: (x._is_view(), x.is_shared(), x * 2))
        x = vector()
        yield f(x), f(x[:]), f(x.detach()), f(vector().share_memory_()), f(x)
