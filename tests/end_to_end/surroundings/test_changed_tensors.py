"""Tensors that the program writes to, views, aliases and differentiates, from call to call."""

# The histories keep the style of users, against the advice of linters.

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.end_to_end.histories import Histories, attempt, compare, vector

histories = Histories()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("history", histories)
def test_same_as_eager(history):
    compare(history, "aot_eager")


@histories
def requires_grad_inplace(compiled):

    @compiled
    def f(x):
        y = x * 2
        y.requires_grad_()
        z = y * 3
        return (y, z)

    yield f(vector())
    yield f(vector())

    @compiled
    def g(x):
        x.requires_grad_(True)
        return x * 2

    t = vector()
    yield g(t)
    yield t
    yield g(t)

    @compiled
    def h(x):
        return x.detach().requires_grad_() * 2

    yield h(vector())


@histories
def detach_alias(compiled):

    @compiled
    def f(x):
        d = x.detach()
        d.add_(1)
        return (d, x * 2)

    t = vector().requires_grad_()
    yield f(t)
    yield t
    u = vector()
    yield f(u)
    yield u


@histories
def data_attr(compiled):

    @compiled
    def f(x):
        x.data = x.data * 2
        return x + 1

    t = vector()
    yield f(t)
    yield t

    @compiled
    def g(x):
        x.data.add_(1)
        return x * 2

    p = nn.Parameter(vector())
    yield g(p)
    yield p

    @compiled
    def h(p, v):
        p.data.copy_(v)
        return p.sum()

    yield h(p, vector() * 5)
    yield p


@histories
def grad_write(compiled):

    @compiled
    def f(x):
        x.grad = x.detach() * 2
        return x + 1

    p = nn.Parameter(vector())
    yield f(p)
    yield p.grad
    yield f(p)

    @compiled
    def g(x):
        x.grad = None
        return x + 1

    yield g(p)
    yield p.grad

    @compiled
    def h(x):
        x.grad.mul_(2) if x.grad is not None else None
        return x

    p.grad = vector()
    yield h(p)
    yield p.grad


@histories
def backward_inside(compiled):

    @compiled
    def f(x):
        y = (x * x).sum()
        y.backward()
        return x.grad

    p = nn.Parameter(vector())
    yield f(p)
    yield f(p)

    @compiled
    def g(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    yield g(p)


@histories
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


@histories
def tensor_attrs(compiled):

    @compiled
    def f(x):
        x.foo = 5
        return x * x.foo

    t = vector()
    yield f(t)
    yield t.foo
    yield attempt(f, t)

    @compiled
    def g(x):
        return x * getattr(x, "bar", 2)

    u = vector()
    yield g(u)
    u.bar = 7
    yield g(u)
    del u.bar
    yield g(u)

    @compiled
    def h(x):
        return (hasattr(x, "zip"), x.__dict__ if False else 0)

    yield h(u)
    u.zip = 1
    yield h(u)


@histories
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


@histories
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
    yield r
    yield t


@histories
def nograd_view(compiled):

    @compiled
    def f(x):
        with torch.no_grad():
            v = x[1:]
        return (v * 2, v)

    p = nn.Parameter(vector())
    yield f(p)


@histories
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


@histories
def out_kwarg(compiled):

    @compiled
    def f(x, o):
        torch.add(x, 1, out=o)
        return o * 2

    o = torch.empty(3)
    yield f(vector(), o)
    yield o
    o2 = torch.empty(0)
    yield f(vector(), o2)
    yield o2


@histories
def inplace_ops(compiled):

    @compiled
    def f(x, i):
        x[i] += 5
        x[x > 3] = 0
        x.index_add_(0, i, torch.ones(2))
        x.scatter_(0, torch.tensor([0]), 9.0)
        return x

    t = torch.arange(6.0)
    yield f(t, torch.tensor([1, 2]))
    yield t

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


@histories
def views_and_shared_memory(compiled):
    @compiled
    def f(x):
        return x._is_view(), x.is_shared(), x * 2

    x = vector()
    yield f(x)
    yield f(x[:])
    yield f(x.detach())
    yield f(vector().share_memory_())
    yield f(x)
