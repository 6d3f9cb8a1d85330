"""Modules whose parts, parameters, flags and hooks change between calls."""

from __future__ import annotations

import copy
import gc
import pickle

import torch
from torch import nn

from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test("aot_eager")


def inp(r=False):
    return torch.arange(6.0).reshape(2, 3).requires_grad_(r)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        torch.manual_seed(1)
        s.a = nn.Linear(3, 3)
        s.b = nn.Linear(3, 2)
        s.flag = True
        s.k = 1
        s.register_buffer("buf", torch.ones(2))
        s.drop = nn.Dropout(0.5)
        s.bn = nn.BatchNorm1d(3)

    def forward(s, x):
        y = s.a(x)
        if s.flag:
            y = torch.relu(y)
        return s.b(y) * s.k + s.buf


def grads(m):
    return [None if p.grad is None else p.grad.clone() for p in m.parameters()]


def step(m, x):
    for p in m.parameters():
        p.grad = None
    y = m(x)
    y.sum().backward()
    return [y] + grads(m)


class TE(nn.Module):
    def __init__(s):
        super().__init__()
        torch.manual_seed(1)
        s.l = nn.Linear(3, 3)
        s.d = nn.Dropout(0.5)
        s.bn = nn.BatchNorm1d(3)

    def forward(s, x):
        return s.bn(s.d(s.l(x))) * (2 if s.training else 1)


@histories
class Cases:
    def submodule_swap(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.a = nn.Linear(3, 3, bias=False)
        yield step(m, inp())
        m.a = nn.Identity()
        yield step(m, inp())
        m.a = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        yield step(m, inp())

    def param_data(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.a.weight.data = torch.ones(3, 3)
        yield step(m, inp())
        m.a.weight = nn.Parameter(torch.ones(3, 3) * 2)
        yield step(m, inp())
        m.a.weight.requires_grad = False
        yield step(m, inp())
        m.a.weight.requires_grad_(True)
        yield step(m, inp())
        with torch.no_grad():
            m.a.weight.mul_(3)
        yield step(m, inp())
        m.double()
        yield step(m, inp().double())
        m.float()
        yield step(m, inp())
        m.b.bias = None
        yield step(m, inp())

    def param_same_shape_transposed(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.a.weight.data = torch.arange(9.0).reshape(3, 3).t()
        yield step(m, inp())

    def tied(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.b = nn.Linear(3, 3)
        m.buf = torch.ones(3)
        yield step(m, inp())
        m.b.weight = m.a.weight
        yield step(m, inp())
        m.b = m.a
        yield step(m, inp())

    def flags(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.flag = False
        yield step(m, inp())
        m.k = 3
        yield step(m, inp())
        m.k = 2.5
        yield step(m, inp())
        m.buf = torch.zeros(2)
        yield step(m, inp())
        m.buf = None
        yield attempt(step, m, inp())

    def frozen(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.requires_grad_(False)
        yield m(inp()), m(inp(True))
        m.requires_grad_(True)
        yield step(m, inp(True))

    def train_eval(compiled):
        m = compiled(TE())
        for t in (True, False, True, False):
            m.train(t)
            torch.manual_seed(3)
            yield step(m, inp()), [b for b in m.buffers()]
        m.d.train()
        torch.manual_seed(3)
        yield step(m, inp())
        m.d.p = 0.1
        torch.manual_seed(3)
        yield step(m, inp())
        m.bn.momentum = 0.5
        m.train()
        torch.manual_seed(3)
        yield step(m, inp()), list(m.buffers())
        m.bn.momentum = None
        yield step(m, inp()), list(m.buffers())
        m.bn.eps = 1.0
        m.eval()
        yield step(m, inp())
        m.bn.track_running_stats = False
        yield step(m, inp())

    def hooks(compiled):
        m = compiled(Net())
        log = []
        yield step(m, inp())
        h = m.register_forward_pre_hook(lambda mod, a: (a[0] * 2,))
        yield step(m, inp())
        h.remove()
        yield step(m, inp())
        h = m.register_forward_hook(lambda mod, a, o: o + 1)
        yield step(m, inp())
        h2 = m.register_forward_hook(lambda mod, a, o: o * 3, prepend=True)
        yield step(m, inp())
        h.remove()
        yield step(m, inp())
        h2.remove()
        h = m.a.register_forward_hook(lambda mod, a, kw, o: o - 1, with_kwargs=True)
        yield step(m, inp())
        h.remove()
        yield step(m, inp())
        h = m.register_forward_pre_hook(lambda mod, a, kw: ((a[0] + 1,), kw), with_kwargs=True)
        yield step(m, inp())
        h.remove()
        h = m.register_forward_hook(lambda mod, a, o: log.append(o.shape))
        yield step(m, inp()), list(map(tuple, log))
        h.remove()
        yield step(m, inp()), list(map(tuple, log))
        h = m.register_full_backward_hook(lambda mod, gi, go: log.append("bw"))
        yield step(m, inp()), list(map(str, log))
        h.remove()
        yield step(m, inp()), list(map(str, log))
        h = m.a.register_full_backward_hook(lambda mod, gi, go: tuple(None if g is None else g * 2 for g in gi))
        yield step(m, inp(True))
        h.remove()
        h = m.register_full_backward_pre_hook(lambda mod, go: tuple(g * 2 for g in go))
        yield step(m, inp())
        h.remove()
        yield step(m, inp())
        h = m.a.weight.register_hook(lambda g: g * 10)
        yield step(m, inp())
        h.remove()
        yield step(m, inp())
        h = m.a.weight.register_post_accumulate_grad_hook(lambda p: log.append("acc"))
        yield step(m, inp()), list(map(str, log))
        h.remove()
        yield step(m, inp()), list(map(str, log))

    def always_call(compiled):
        class B(nn.Module):
            def forward(s, x):
                if x.shape[0] == 3:
                    raise ValueError("bad")
                return x + 1

        m = compiled(B())
        log = []
        h = m.register_forward_hook(lambda mod, a, o: log.append("h"), always_call=True)
        yield m(inp()), list(log), attempt(m, torch.ones(3)), list(log), m(inp()), list(log)

    def global_hooks(compiled):
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
            register_module_full_backward_hook,
        )

        m = compiled(Net())
        log = []
        yield step(m, inp())
        h = register_module_forward_hook(lambda mod, a, o: o * 2)
        yield step(m, inp())
        h.remove()
        yield step(m, inp())
        h = register_module_forward_pre_hook(lambda mod, a: log.append(type(mod).__name__))
        yield step(m, inp()), list(log)
        h.remove()
        yield step(m, inp())
        h = register_module_full_backward_hook(lambda mod, a, o: log.append("b"))
        yield step(m, inp()), len(log)
        h.remove()
        yield step(m, inp()), len(log)

    def forward_patched(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m.forward = lambda x: x.sum() + m.b(x).sum()
        yield m(inp())
        del m.forward
        yield step(m, inp())
        Net.forward, old = (lambda s, x: s.b(x), Net.forward)
        try:
            yield m(inp())
        finally:
            Net.forward = old
        yield step(m, inp())

    def modulelist(compiled):
        class M(nn.Module):
            def __init__(s):
                super().__init__()
                torch.manual_seed(0)
                s.ls = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
                s.d = nn.ModuleDict({"a": nn.Linear(3, 3)})
                s.ps = nn.ParameterList([nn.Parameter(torch.ones(3))])

            def forward(s, x):
                for l in s.ls:
                    x = l(x)
                for k, l in s.d.items():
                    x = l(x)
                for p in s.ps:
                    x = x * p
                return x

        m = compiled(M())
        yield step(m, inp())
        m.ls.append(nn.Linear(3, 3))
        yield step(m, inp())
        m.ls[0] = nn.ReLU()
        yield step(m, inp())
        del m.ls[1]
        yield step(m, inp())
        m.d["b"] = nn.Tanh()
        yield step(m, inp())
        m.ps.append(nn.Parameter(torch.ones(3) * 2))
        yield step(m, inp())
        m.d.pop("a")
        yield step(m, inp())

    def seq(compiled):
        m = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        yield step(m, inp())
        m.append(nn.Linear(3, 1))
        yield step(m, inp())
        m[1] = nn.Tanh()
        yield step(m, inp())
        m.insert(0, nn.ReLU())
        yield step(m, inp())

    def module_in_fn(compiled):
        m = Net()
        f = compiled(lambda x: m(x))
        yield f(inp())
        m.b = nn.Linear(3, 2)
        yield f(inp())
        old = m
        m = Net()
        m.k = 7
        yield f(inp())
        m = nn.Linear(3, 2)
        yield f(inp())
        m = lambda x: x
        yield f(inp())

    def parametrize_later(compiled):
        m = compiled(nn.Sequential(nn.Linear(3, 3)))
        yield step(m, inp())
        torch.nn.utils.parametrizations.weight_norm(m[0])
        yield step(m, inp())

    def state_dict_load(compiled):
        m = compiled(Net())
        yield step(m, inp())
        m2 = Net()
        with torch.no_grad():
            [p.fill_(0.5) for p in m2.parameters()]
        m.load_state_dict(m2.state_dict())
        yield step(m, inp())
        m.load_state_dict(m2.state_dict(), assign=True)
        yield step(m, inp()), list(m.state_dict())

    def optimizer(compiled):
        m = compiled(Net())
        o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            o.zero_grad()
            l = m(inp()).sum()
            l.backward()
            o.step()
            yield l

    def copies(compiled):
        m = compiled(Net())
        yield step(m, inp())
        n = copy.deepcopy(m)
        yield step(n, inp())
        n.k = 5
        yield step(n, inp())
        yield step(m, inp())
        n.a = nn.Identity()
        yield step(n, inp())
        yield step(m, inp())
        del m
        gc.collect()
        yield step(n, inp())

    def pickled(compiled):
        m = compiled(Net())
        yield step(m, inp())
        n = pickle.loads(pickle.dumps(m))
        yield step(n, inp()), (type(n).__name__, list(n.state_dict()))
        import io

        b = io.BytesIO()
        torch.save(m, b)
        b.seek(0)
        k = torch.load(b, weights_only=False)
        yield step(k, inp())

    def share_mod_twice(compiled):
        l = nn.Linear(3, 3)
        torch.manual_seed(0)
        nn.init.normal_(l.weight)
        nn.init.normal_(l.bias)
        m = compiled(nn.Sequential(l, nn.ReLU(), l))
        yield step(m, inp())
        m[2] = nn.Linear(3, 3)
        nn.init.ones_(m[2].weight)
        nn.init.ones_(m[2].bias)
        yield step(m, inp())
        m[2] = l
        yield step(m, inp())

    def extra_args(compiled):
        class M(nn.Module):
            def forward(s, x, *a, k=1, **kw):
                return x * k + len(a) + sum(kw.values())

        m = compiled(M())
        yield m(vector()), m(vector(), 1, 2, k=3, z=4), m(x=vector(), k=vector()), attempt(m)

    def the_forward_of_a_module_of_torch_is_replaced(compiled):
        m = Net()
        f = compiled(lambda x: m(x))
        yield f(inp())
        original = nn.Linear.forward
        nn.Linear.forward = lambda self, x: original(self, x) * 2
        try:
            yield f(inp())
        finally:
            nn.Linear.forward = original
        yield f(inp())
