"""Interpreter-wide torch settings, modes, kinds of tensors and their layouts from call to call."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test("aot_eager")


def gradient(f, x):
    try:
        return torch.autograd.grad(f(x).sum(), x)[0]
    except RuntimeError as error:
        return str(error)


class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, fn, types, args=(), kwargs=None):
        r = super().__torch_function__(fn, types, args, kwargs or {})
        return r + 100 if getattr(fn, "__name__", "") == "relu" else r


@histories
class Cases:
    def default_dtype(compiled):
        f = compiled(lambda n: torch.ones(n) * 0.1)
        yield f(2)
        torch.set_default_dtype(torch.float64)
        try:
            yield f(2)
        finally:
            torch.set_default_dtype(torch.float32)
        yield f(2)

    def default_device(compiled):
        f = compiled(lambda n: (torch.ones(n).device.type, torch.ones(n)))
        yield f(2)
        with torch.device("meta"):
            yield f(2)
        yield f(2)
        torch.set_default_device("meta")
        try:
            yield f(2)
        finally:
            torch.set_default_device(None)
        yield f(2)

    def grad_modes(compiled):
        f = compiled(lambda x: (x * 2, torch.is_grad_enabled()))
        x = vector().requires_grad_()
        yield f(x)
        with torch.no_grad():
            yield f(x)
        with torch.inference_mode():
            r = f(x)
            yield (r, r[0].is_inference())
        with torch.inference_mode():
            y = torch.ones(3)
        yield attempt(lambda: f(y)[0].is_inference()), f(x)
        with torch.enable_grad():
            yield f(x)

    def autocast(compiled):
        f = compiled(lambda x, w: (F.linear(x, w), torch.is_autocast_enabled("cpu")))
        x, w = (torch.randn(2, 3), torch.randn(4, 3))
        yield f(x, w)
        with torch.autocast("cpu", torch.bfloat16):
            yield f(x, w)
        with torch.autocast("cpu", torch.float16):
            yield f(x, w)
        with torch.autocast("cpu", enabled=False):
            yield f(x, w)
        yield f(x, w)

    def autocast_inside(compiled):
        @compiled
        def f(x, w):
            with torch.autocast("cpu", torch.bfloat16):
                y = F.linear(x, w)
                minidynamo.graph_break()
                y = F.linear(y, w.t())
            return y.float() + F.linear(x, w).sum()

        x, w = (torch.randn(2, 3), torch.randn(4, 3))
        yield f(x, w), f(x, w), torch.is_autocast_enabled("cpu")

    def function_mode(compiled):
        class M(torch.overrides.TorchFunctionMode):
            def __torch_function__(s, fn, types, args=(), kwargs=None):
                r = fn(*args, **kwargs or {})
                return r + 1 if getattr(fn, "__name__", "") in ("relu", "mul") else r

        @compiled
        def f(x):
            return torch.relu(x) * 2

        yield f(vector())
        with M():
            yield f(vector())
        yield f(vector())

    def forward_mode_ad(compiled):
        from torch.autograd import forward_ad

        f = compiled(lambda x: x.sin() * 2)
        yield f(vector())
        with forward_ad.dual_level():
            yield forward_ad.unpack_dual(f(forward_ad.make_dual(vector(), vector()))).tangent
        yield f(vector())

    def detecting_anomalies(compiled):
        f = compiled(lambda x: x.sqrt() * 0)
        compiled_inside = compiled(lambda x: x.sqrt() * 0)
        zero, one = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
        yield gradient(f, zero)
        with torch.autograd.detect_anomaly():
            for g in (f, compiled_inside):
                yield gradient(g, zero), gradient(g, one)
        with torch.autograd.detect_anomaly(check_nan=False):
            yield gradient(f, zero), gradient(compiled_inside, zero)
        yield gradient(f, zero), gradient(compiled_inside, zero)

    def detecting_anomalies_in_a_function(compiled):
        @compiled
        def f(x):
            with torch.autograd.detect_anomaly():
                y = x.sqrt() * 2
                return torch.autograd.grad((y * 0).sum(), x)[0]

        for x in (torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)):
            yield attempt(f, x), torch.is_anomaly_enabled()

    def differentiated_while_anomalies_are_detected(compiled):
        f = compiled(lambda x: x.exp() * x.sin())
        x = torch.ones(2, requires_grad=True)
        y = f(x).sum()
        with torch.autograd.detect_anomaly():
            (grad,) = torch.autograd.grad(y, x, create_graph=True)
            yield grad, torch.autograd.grad(grad.sum(), x)[0]

    def random_numbers_in_a_transform(compiled):
        noise = compiled(lambda x: torch.rand_like(x))
        fresh = compiled(lambda: torch.rand(3))
        yield noise(vector()).shape, fresh().shape
        for f in (lambda: noise(vector()), fresh):
            rows = torch.vmap(lambda x, f=f: f() * x, randomness="different")(torch.ones(2))
            yield rows.shape, torch.equal(rows[0], rows[1])

    def dispatch_mode(compiled):
        from torch.utils._python_dispatch import TorchDispatchMode

        log = []

        class M(TorchDispatchMode):
            def __torch_dispatch__(s, fn, types, args=(), kwargs=None):
                log.append(str(fn))
                return fn(*args, **kwargs or {})

        f = compiled(lambda x: torch.relu(x) * 2)
        yield f(vector())
        with M():
            yield f(vector())
        yield log, f(vector())

    def subclass(compiled):
        @compiled
        def f(x):
            return torch.relu(x) * 2

        yield f(vector())
        s = vector().as_subclass(Sub)
        yield f(s), f(vector()), type(f(s)).__name__, f(nn.Parameter(vector()))

    def layouts(compiled):
        f = compiled(lambda x: (x * 2 + 1, x.stride(), x.is_contiguous()))
        t = torch.arange(12.0).reshape(3, 4)
        for v in (
            *(t, t.t(), t[:, ::2], t[1:], t.expand(2, 3, 4), t[0], t[0, 0], t.flip(0), torch.empty(0, 3), t.double()),
            *(t.int(), t.bool(), t.to(torch.bfloat16), t.conj(), t.to(torch.complex64).conj()),
        ):
            yield f(v)

    def sparse_etc(compiled):
        f = compiled(lambda x: (x * 2).to_dense())
        yield f(torch.eye(2)), f(torch.eye(2).to_sparse()), f(torch.eye(2).to_sparse_csr()), f(torch.eye(2))

    def storage_offset(compiled):
        f = compiled(lambda x: (x.storage_offset(), x.data_ptr() != 0, x + 1))
        t = torch.arange(6.0)
        yield f(t), f(t[1:]), f(t[2:5])

    def as_strided(compiled):
        f = compiled(lambda x: (x.as_strided((2,), (1,)) + 0, torch.as_strided(x, (2,), (2,), 0) + 0))
        t = torch.arange(6.0)
        yield f(t[2:]), f(t[3:]), f(t[:4])

    def is_leaf(compiled):
        f = compiled(lambda x: (x.is_leaf, x.requires_grad, x.grad_fn is None, x.grad is None))
        a = vector().requires_grad_()
        yield f(a), f(a * 2), f(vector())
        a.sum().backward()
        yield f(a)
        a.grad = None
        yield f(a)

    def grad_read(compiled):
        f = compiled(lambda x: x.grad * 2 if x.grad is not None else x)
        a = vector().requires_grad_()
        yield f(a)
        a.sum().backward()
        yield f(a)
        a.grad = torch.ones(3) * 4
        yield f(a)
        a.grad = None
        yield f(a)

    def rng(compiled):
        f = compiled(lambda x: (F.dropout(x, 0.5) + torch.rand(3) * torch.randn(3) + torch.randint(0, 5, (3,)), 1))
        torch.manual_seed(1)
        yield f(vector()), f(vector()), torch.rand(2)

    def pyrandom(compiled):
        f = compiled(lambda x: x * random.random() + random.randint(0, 5))
        random.seed(0)
        yield f(vector()), f(vector()), random.random()

    def envs(compiled):
        import os

        f = compiled(lambda x: x * (2 if os.environ.get("QQ") else 1))
        yield f(vector())
        os.environ["QQ"] = "1"
        yield f(vector())
        del os.environ["QQ"]
        yield f(vector())
