"""Programs of training and generation from repositories: adapters, caches, averages, schedules, pipelines.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import contextlib
import dataclasses
import enum
import functools
import heapq
import inspect
import math
import operator
import typing
from collections import defaultdict, deque
from contextlib import ExitStack, contextmanager
from dataclasses import InitVar, dataclass, field, fields
from functools import wraps
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.coverage_case import Corpus, leaf

programs = Corpus()
T = TypeVar("T")


def seeded(make):
    def made():
        torch.manual_seed(0)
        return make()

    return made


class LoRA(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = {"default": 0.5}
        self.active = ["default"]
        self.merged = False

    def forward(self, x):
        y = self.base(x)
        if not self.merged:
            for a in self.active:
                y = y + F.linear(F.linear(x, self.a), self.b) * self.scaling[a]
        return y

    def merge(self):
        self.base.weight.data += self.b @ self.a * 0.5
        self.merged = True


@programs(seeded(lambda: (LoRA(nn.Linear(4, 4)), torch.randn(2, 4))))
def lora(m, x):
    y = m(x)
    m.merge()
    return y, m(x), m.merged, [n for n, p in m.named_parameters() if p.requires_grad]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.emb.weight

    def forward(self, i):
        return self.out(self.emb(i))


@programs(seeded(lambda: (Tied(), torch.tensor([1, 2]))))
def tied(m, i):
    return m(i), m.out.weight is m.emb.weight, len(list(m.parameters())), sum(p.numel() for p in m.parameters())


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        return (
            x.div(keep)
            * (keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)).floor_()
        )


class Res(nn.Module):
    def __init__(self, f, p=0.1):
        super().__init__()
        self.f, self.dp = f, DropPath(p)

    def forward(self, x, *a, **k):
        return x + self.dp(self.f(x, *a, **k))


@programs(
    seeded(
        lambda: (
            nn.Sequential(*[Res(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU())) for _ in range(2)]),
            torch.randn(3, 4),
        )
    )
)
def droppath(m, x):
    return m(x), m.eval()(x)


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.feats = {}
        self.l.register_forward_hook(self.save("l"))
        self.l.register_forward_pre_hook(lambda m, a: (a[0] * 2,))

    def save(self, n):
        def h(m, a, o):
            self.feats[n] = o.detach()

        return h

    def forward(self, x):
        return self.l(x)


@programs(seeded(lambda: (Hooked(), torch.randn(2, 4))))
def hooked(m, x):
    y = m(x)
    return y, m.feats["l"]


class LazyInit(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = None

    def forward(self, x):
        if self.w is None:
            self.w = torch.ones(x.shape[-1])
        return x * self.w


@programs(seeded(lambda: (LazyInit(), torch.randn(2, 4))))
def lazy(m, x):
    return m(x), m(x), m.w


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0
        self.hist = []
        self.register_buffer("b", torch.zeros(1))

    def forward(self, x):
        self.n += 1
        self.hist.append(tuple(x.shape))
        self.b = self.b + x.mean()
        return x * self.n


@programs(seeded(lambda: (Counter(), torch.randn(2, 4))))
def counter(m, x):
    m(x)
    return m(x), m.n, m.hist, m.b, dict(m.named_buffers())["b"] is m.b


class GetAttr(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, n):
        try:
            return super().__getattr__(n)
        except AttributeError:
            return getattr(self.inner, n)

    def forward(self, *a, **k):
        return self.inner(*a, **k)


@programs(seeded(lambda: (GetAttr(nn.Linear(4, 2)), torch.randn(2, 4))))
def wrapper(m, x):
    return m(x), m.in_features, m.weight.shape, hasattr(m, "nope"), isinstance(m, nn.Module)


@programs(seeded(lambda: (nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Identity()}), torch.randn(2, 4))))
def moduledict(m, x):
    for k, v in m.items():
        x = v(x)
    m["c"] = nn.ReLU()
    return x, list(m), "c" in m, m["c"](x), m.pop("b").__class__.__name__, len(m)


@programs(seeded(lambda: (nn.ModuleList([nn.Linear(4, 4)]), torch.randn(2, 4))))
def modulelist_edit(m, x):
    m.append(nn.ReLU())
    m.insert(0, nn.Identity())
    m.extend([nn.Tanh()])
    m[0] = nn.Sigmoid()
    for layer in m:
        x = layer(x)
    return x, [type(layer).__name__ for layer in m], len(m[1:])


@programs(seeded(lambda: (nn.Linear(4, 4), torch.randn(2, 4))))
def set_attr_paths(m, x):
    m.foo = 3
    m.bar = nn.Parameter(torch.ones(4))
    m.register_parameter("nob", None)
    setattr(m, "buf", torch.ones(4))
    del m.foo
    return m(x) * m.bar + m.buf, sorted(n for n, _ in m.named_parameters()), hasattr(m, "foo"), m.nob


@programs(seeded(lambda: (nn.MultiheadAttention(4, 2, batch_first=True), torch.randn(2, 3, 4))))
def mha(m, x):
    return m(x, x, x, need_weights=True, attn_mask=torch.ones(3, 3).triu(1).bool()), m.eval()(
        x, x, x, need_weights=False
    )[0]


@programs(
    seeded(
        lambda: (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
            ),
            torch.randn(2, 3, 4),
        )
    )
)
def encoder(m, x):
    return m(x, src_key_padding_mask=torch.tensor([[False, False, True]] * 2))


@programs(seeded(lambda: (nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), torch.randn(2, 5, 4))))
def lstm(m, x):
    o, (h, c) = m(x)
    return o, h, c


@programs(seeded(lambda: (nn.GRUCell(4, 3), torch.randn(5, 2, 4))))
def grucell(m, x):
    h = x.new_zeros(2, 3)
    out = []
    for t in x.unbind(0):
        h = m(t, h)
        out.append(h)
    return torch.stack(out)


@programs(seeded(lambda: (nn.Linear(4, 1), torch.randn(3, 4))))
def functional_grad_step(m, x):
    ps = dict(m.named_parameters())

    def loss(p):
        return torch.func.functional_call(m, p, (x,)).pow(2).mean()

    g = torch.func.grad(loss)({k: v.detach() for k, v in ps.items()})
    return {k: ps[k] - 0.1 * g[k] for k in ps}


@programs(seeded(lambda: (nn.Linear(4, 1), torch.randn(3, 4))))
def per_sample(m, x):
    ps = {k: v.detach() for k, v in m.named_parameters()}
    return torch.func.vmap(
        torch.func.grad(lambda p, v: torch.func.functional_call(m, p, (v[None],)).sum()), in_dims=(None, 0)
    )(ps, x)


@programs(seeded(lambda: (nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(2, 4))))
def polyak(a, b, x):
    with torch.no_grad():
        for p, q in zip(a.parameters(), b.parameters()):
            q.data.mul_(0.9).add_(p.data, alpha=0.1)
        torch._foreach_lerp_(list(b.parameters()), list(a.parameters()), 0.5)
    return b(x)


@programs(
    seeded(lambda: (nn.Linear(4, 2), torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1), torch.randn(2, 4)))
)
def lr_sched_manual(m, o, x):
    for g in o.param_groups:
        g["lr"] = max(1e-5, g["lr"] * 0.5)
        g.setdefault("initial_lr", 0.1)
    return m(x) * o.param_groups[0]["lr"], o.param_groups[0]["initial_lr"]


@programs(seeded(lambda: (nn.Linear(4, 2), torch.randn(2, 4), torch.tensor([0, 1]))))
def accuracy(m, x, y):
    with torch.inference_mode():
        logits = m(x)
    pred = logits.argmax(-1)
    return (
        (pred == y).float().mean(),
        {"top1": (pred == y).sum(), "n": y.numel()},
        torch.bincount(y, minlength=3) if False else None,
    )


@programs(seeded(lambda: (nn.Linear(4, 2), torch.randn(4, 4))))
def grad_accum(m, x):
    tot = 0.0
    for i, c in enumerate(x.chunk(2)):
        ctx = contextlib.nullcontext() if i else torch.enable_grad()
        with ctx:
            tot = tot + m(c).pow(2).mean() / 2
    return tot


@programs(seeded(lambda: (nn.Linear(4, 2), torch.randn(4, 4))))
def ckpt(m, x):
    return torch.utils.checkpoint.checkpoint(lambda v: m(v).relu(), x, use_reentrant=False).sum()


@programs(seeded(lambda: (nn.Linear(4, 2), torch.randn(4, 4))))
def amp_mix(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = m(x)
        with torch.autocast("cpu", enabled=False):
            z = m(x.float())
    return y.dtype, z.dtype, y.float() + z


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lo, hi):
        ctx.save_for_backward(x)
        ctx.b = lo, hi
        return x.clamp(lo, hi)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        lo, hi = ctx.b
        return g * ((x >= lo) & (x <= hi)), None, None


class GradRev(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.factor * g, None


@programs(leaf)
def custom_fns(x):
    return Clamp.apply(x, -0.5, 0.5) + GradRev.apply(x, 2.0)


class TwoOut(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x * w, x + w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, a, b):
        x, w = ctx.saved_tensors
        gx = gw = None
        if a is not None:
            gx, gw = a * w, a * x
        if b is not None:
            gx = b if gx is None else gx + b
            gw = b if gw is None else gw + b
        return gx, gw


@programs(lambda: (torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)))
def two_out(x, w):
    a, b = TwoOut.apply(x, w)
    return a.sum() + b.sum()


@programs(leaf)
def tensor_hook(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return (y * y).sum()


@programs(leaf)
def retain(x):
    y = x * 2
    y.retain_grad()
    return y.sum(), y


@dataclass
class Block:
    kind: str
    dim: int = 4
    act: typing.Callable = F.relu
    opts: dict = field(default_factory=dict)

    def build(self):
        return BUILD[self.kind](self)


BUILD = {"lin": lambda b: lambda x: b.act(x * b.dim, **b.opts), "id": lambda b: lambda x: x}


@programs()
def build_pipeline(x):
    blocks = [Block("lin"), Block("id"), Block("lin", 2, F.leaky_relu, {"negative_slope": 0.2})]
    for f in map(Block.build, blocks):
        x = f(x)
    return x, [b.kind for b in blocks], dataclasses.asdict(dataclasses.replace(blocks[1], act=None))


class Stage(enum.IntFlag):
    TRAIN = 1
    EVAL = 2
    BOTH = 3


@programs()
def stage_flags(x):
    s = Stage.TRAIN
    if s in Stage.BOTH:
        x = x + 1
    match s:
        case Stage.EVAL:
            x = x * 100
        case Stage.TRAIN if x.dim() == 1:
            x = x * s.value
    return x, s | Stage.EVAL == Stage.BOTH, [m.name for m in Stage], Stage["EVAL"], Stage(1) is s


T1 = typing.TypeVar("T1")


class Reg(typing.Generic[T1]):
    def __init__(self):
        self._m: dict[str, T1] = {}

    def __call__(self, name):
        def deco(f):
            self._m[name] = f
            return f

        return deco

    def __getitem__(self, n):
        return self._m[n]

    def __contains__(self, n):
        return n in self._m

    def __missing__(self, n):
        raise KeyError(n)


ACTS = Reg[typing.Callable]()


@ACTS("sq")
def sq(x):
    return x * x


@programs()
def reg_generic(x):
    r = Reg[int]()
    r("three")(3)
    return ACTS["sq"](x) * r["three"], "nope" in ACTS, typing.get_args(typing.List[int]), Reg.__parameters__ == (T1,)


class View:
    def __init__(self, d, p=""):
        object.__setattr__(self, "_d", d)
        object.__setattr__(self, "_p", p)

    def __getattr__(self, n):
        try:
            v = self._d[n]
        except KeyError:
            raise AttributeError(f"no {self._p}{n}") from None
        return View(v, f"{self._p}{n}.") if isinstance(v, dict) else v

    def __setattr__(self, n, v):
        self._d[n] = v

    def __iter__(self):
        return iter(self._d.items())

    def __dir__(self):
        return list(self._d)


@programs()
def config_view(x):
    c = View({"model": {"dim": 4, "act": {"name": "relu"}}, "lr": 0.1})
    c.lr = 0.2
    c.model.dim = 8
    try:
        c.model.nope
    except AttributeError as e:
        m = str(e)
    return x * c.lr * c.model.dim, getattr(F, c.model.act.name)(x), m, hasattr(c, "zz"), dict(c)


class Pipe:
    def __init__(self, *fs):
        self.fs = fs

    def __or__(self, f):
        return Pipe(*self.fs, f)

    def __ror__(self, v):
        return functools.reduce(lambda a, f: f(a), self.fs, v)

    def __rrshift__(self, v):
        return v | self


@programs()
def pipes(x):
    p = Pipe(torch.sin) | torch.cos | (lambda v: v + 1)
    return [x] and p.__ror__(x), 3 | Pipe(lambda v: v + 1), 4 >> Pipe(lambda v: v * 2)


@programs()
def tensor_pipe(x):
    return x | Pipe(torch.sin) if False else Pipe(torch.sin).__ror__(x)


@programs(lambda: ({"a": torch.ones(2), "b": [torch.ones(3), (torch.zeros(1), None)], "c": 3},))
def tree_ops(d):
    import torch.utils._pytree as pt

    leaves, spec = pt.tree_flatten(d)
    n = pt.tree_map(lambda v: v * 2 if isinstance(v, torch.Tensor) else v, d)

    def rec(v):
        if isinstance(v, dict):
            return {k: rec(w) for k, w in v.items()}
        if isinstance(v, (list, tuple)):
            return type(v)(map(rec, v))
        return v + 1 if torch.is_tensor(v) else v

    return len(leaves), n, rec(d), pt.tree_unflatten(leaves, spec)["c"]


@programs(lambda: (torch.randn(2, 3), torch.randn(2, 3)))
def broadcast_shapes(a, b):
    return (
        torch.broadcast_tensors(a, b[:1]),
        torch.broadcast_shapes((2, 1), (3,)),
        a.shape[:-1] + (7,),
        torch.Size([*a.shape, 1]).numel(),
        a.size()[1:],
        tuple(a.shape) == (2, 3),
        math.prod(a.shape),
        a.new_empty(0).numel(),
        a.ndim,
        [*a.shape],
        max(a.shape),
    )


class Meter:
    def __init__(self):
        self.sum = 0.0
        self.n = 0
        self.hist = deque(maxlen=3)

    def update(self, v, n=1):
        self.sum += v * n
        self.n += n
        self.hist.append(v)

    @property
    def avg(self):
        return self.sum / max(self.n, 1)


@programs(lambda: (Meter(), torch.randn(4)))
def meter(m, x):
    for i in range(4):
        m.update(x.mean() * i, n=i)
    return m.avg, list(m.hist), m.n


class EarlyStop:
    def __init__(self):
        self.best = math.inf
        self.bad = 0

    def step(self, v):
        if v < self.best - 1e-3:
            self.best, self.bad = v, 0
        else:
            self.bad += 1
        return self.bad >= 2


@programs(lambda: (EarlyStop(), torch.randn(4)))
def early_stop(e, x):
    out = [e.step(v) for v in (3.0, 2.0, 2.5, 2.6)]
    return x * e.bad, out, e.best


class Buf:
    def __init__(self, n):
        self.t = torch.zeros(n, 4)
        self.i = 0
        self.full = False

    def push(self, x):
        self.t[self.i] = x
        self.i = (self.i + 1) % len(self.t)
        self.full |= self.i == 0

    def sample(self):
        return self.t if self.full else self.t[: self.i]


@programs(lambda: (Buf(3), torch.randn(4)))
def ring_buffer(b, x):
    for k in range(4):
        b.push(x * k)
    return b.sample().sum(0), b.i, b.full


class RunningNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("var", torch.ones(d))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.count += 1
                d = x.mean(0) - self.mean
                self.mean += d / self.count
                self.var.lerp_(x.var(0), 0.1)
        return (x - self.mean) / (self.var + 1e-5).sqrt()


@programs(lambda: (RunningNorm(4), torch.randn(5, 4)))
def running_norm(m, x):
    return m(x), m.eval()(x), m.mean, m.count


@programs(lambda: (torch.randn(2, 8),))
def penalties(logits):
    seen = defaultdict(int)
    for t in [1, 3, 3, 5]:
        seen[t] += 1
    for t, c in seen.items():
        logits[:, t] = torch.where(logits[:, t] < 0, logits[:, t] * 1.2**c, logits[:, t] / 1.2**c)
    return logits.log_softmax(-1)


class StopCriteria(list):
    def __call__(self, ids, s):
        return any(c(ids, s) for c in self)


class MaxLen:
    def __init__(self, n):
        self.n = n

    def __call__(self, ids, s):
        return ids.shape[-1] >= self.n


class LogitsList(list):
    def __call__(self, ids, s, **kw):
        for p in self:
            a = inspect.signature(p.__call__).parameters
            s = p(ids, s, **{k: v for k, v in kw.items() if k in a}) if len(a) > 2 else p(ids, s)
        return s


class Temp:
    def __init__(self, t):
        self.t = t

    def __call__(self, ids, s):
        return s / self.t


class Bias:
    def __call__(self, ids, s, bias=0.0):
        return s + bias


@programs(lambda: (torch.zeros(1, 2, dtype=torch.long), torch.randn(1, 5)))
def greedy_loop(ids, logits):
    stop, procs = StopCriteria([MaxLen(5)]), LogitsList([Temp(0.5), Bias()])
    while not stop(ids, None):
        s = procs(ids, logits, bias=1.0, junk=2)
        ids = torch.cat([ids, s.argmax(-1, keepdim=True)], -1)
    return ids


@programs(lambda: (torch.randn(4, 5, requires_grad=True), torch.randint(0, 5, (4,))))
def label_smoothing(x, t):
    lp = x.log_softmax(-1)
    n = x.size(-1)
    sm = torch.full_like(lp, 0.1 / (n - 1)).scatter_(-1, t[:, None], 0.9)
    ign = t.ne(0)
    return (-(sm * lp).sum(-1) * ign).sum() / ign.sum().clamp(min=1)


@programs(lambda: (torch.randn(3, 4, requires_grad=True),))
def dict_losses(x):
    losses = {f"l{i}": (x * i).pow(2).mean() for i in range(3)}
    w = dict(zip(losses, (1.0, 0.5, 0.0)))
    total = sum(w[k] * v for k, v in losses.items() if w[k] > 0)
    return (
        total,
        {k: v.detach() for k, v in losses.items()},
        max(w, key=w.get),
        sorted(w.items(), key=lambda kv: -kv[1]),
    )


@programs(lambda: (torch.randn(2, 6, 4),))
def windows(x):
    out = []
    for s in range(0, x.size(1) - 2, 2):
        w = x[:, s : s + 3]
        out.append(w.mean(1) if s % 4 == 0 else w.amax(1))
    return torch.stack(out, 1), [*range(0, x.size(1), 4)], divmod(x.size(1), 4), -x.size(1) // 4


@programs(lambda: (torch.randn(2, 5),))
def masks(x):
    B, T = x.shape
    lens = torch.tensor([3, 5])
    m = torch.arange(T)[None] < lens[:, None]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    bias = torch.zeros(B, T, T).masked_fill(~(m[:, None] & causal), torch.finfo(x.dtype).min)
    return bias.softmax(-1) @ x[..., None], x.masked_fill(~m, 0).sum(1) / lens


@programs(lambda: (torch.randn(2, 6, 8), 2))
def rope(x, h):
    B, T, D = x.shape
    d = D // h
    inv = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
    f = torch.outer(torch.arange(T).float(), inv)
    c, s = f.cos(), f.sin()
    x = x.view(B, T, h, d).transpose(1, 2)
    a, b = x.chunk(2, -1)
    y = torch.cat([a * c - b * s, a * s + b * c], -1)
    z = torch.view_as_complex(x.reshape(B, h, T, -1, 2)) * torch.polar(torch.ones_like(f), f)
    return y.transpose(1, 2).reshape(B, T, D), torch.view_as_real(z).flatten(3)


@programs(lambda: (torch.randn(2, 3, 8, 8),))
def patches(x):
    p = 4
    y = x.unfold(2, p, p).unfold(3, p, p)
    y = y.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    return (
        y,
        F.fold(F.unfold(x, p, stride=p), (8, 8), p, stride=p),
        F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
    )


@programs(lambda: (torch.randn(4, 4), torch.tensor([0, 1, 0, 2])))
def scatter_pool(x, b):
    n = 3
    s = torch.zeros(n, 4).index_add_(0, b, x)
    c = torch.zeros(n).scatter_add_(0, b, torch.ones(4))
    return s / c[:, None], torch.zeros(n, 4).scatter_reduce(0, b[:, None].expand_as(x), x, "amax", include_self=False)


@programs(lambda: (torch.randn(6, 4),))
def moe(x):
    g = x[:, :3].softmax(-1)
    w, i = g.topk(2, -1)
    out = torch.zeros_like(x)
    for e in range(3):
        m = (i == e).any(-1, keepdim=True)
        we = (w * (i == e)).sum(-1, keepdim=True)
        out = out + torch.where(m, x * (e + 1) * we, 0)
    return out, F.one_hot(i, 3).float().mean((0, 1))


@programs()
def gen_pipeline(x):
    def read(n):
        for i in range(n):
            yield x * i

    def keep(it, p):
        yield from (v for k, v in enumerate(it) if p(k))

    def batch(it, n):
        b = []
        for v in it:
            b.append(v)
            if len(b) == n:
                yield torch.stack(b)
                b = []
        if b:
            yield torch.stack(b)

    return list(batch(keep(read(5), lambda k: k != 1), 2))


class Node:
    def __init__(self, v, *kids):
        self.v = v
        self.kids = kids

    def __iter__(self):
        yield self.v
        for k in self.kids:
            yield from k

    def __contains__(self, v):
        return any(v == w for w in self)

    def map(self, f):
        return Node(f(self.v), *(k.map(f) for k in self.kids))


@programs()
def tree(x):
    t = Node(1, Node(2), Node(3, Node(4)))
    return sum(x * v for v in t), 4 in t, list(t.map(lambda v: v * v)), max(t), functools.reduce(operator.add, t)


G = {"calls": 0}


def counted(f):
    @functools.wraps(f)
    def w(*a, **k):
        G["calls"] += 1
        return f(*a, **k)

    return w


@counted
def cf(x):
    return x + G["calls"]


@programs()
def global_counter(x):
    G["calls"] = 0
    return cf(x), cf(x), G["calls"]


@dataclass(frozen=True)
class OptCfg:
    lr: float = 0.1
    betas: tuple = (0.9, 0.99)


@dataclass
class Cfg:
    name: str = "m"
    dims: list = field(default_factory=lambda: [4, 4])
    opt: OptCfg = field(default_factory=OptCfg)
    extra: dict = field(default_factory=dict)
    scale: InitVar[float] = 2.0
    total: int = field(init=False, default=0)
    KINDS: ClassVar[list] = ["a", "b"]

    def __post_init__(self, scale):
        self.total = sum(self.dims)
        self.s = scale

    @classmethod
    def from_dict(cls, d):
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in d.items() if k in known})


@programs()
def cfg_from_dict(x):
    c = Cfg.from_dict({"name": "z", "dims": [1, 2], "junk": 3})
    return x * c.total * c.s, c, f"{c.name:>4}|{c.dims!r}|{c.opt.lr:.3f}"


@dataclass(order=True, slots=True)
class Item:
    prio: int
    val: Any = field(compare=False)
    tags: set = field(default_factory=set, compare=False, repr=False)


@programs()
def dataclass_order_slots(x):
    items = [Item(3, x), Item(1, x * 2), Item(2, x + 1)]
    heapq.heapify(items)
    return [heapq.heappop(items).val for _ in range(3)], repr(Item(3, 4)), max(Item(1, 0), Item(2, 0)).prio


class Plugin:
    subs: dict = {}

    def __init_subclass__(cls, key=None, **kw):
        super().__init_subclass__(**kw)
        Plugin.subs[key] = cls


class PA(Plugin, key="a"):
    def run(self, x):
        return x + 1


class PB(Plugin, key="b"):
    def run(self, x):
        return x * 2


@programs()
def plugin_registry(x):
    return [Plugin.subs[k]().run(x) for k in ("a", "b")], [c.__name__ for c in Plugin.__subclasses__()]


def timed(f):
    @wraps(f)
    def inner(*a, **k):
        inner.calls += 1
        return f(*a, **k)

    inner.calls = 0
    return inner


@timed
def tfn(x, y=2):
    return x * y


@programs()
def decorated_counter(x):
    before = tfn.calls
    r = tfn(x) + tfn(x, y=3)
    return r, tfn.calls - before, tfn.__name__, tfn.__wrapped__(x)


def retry(n, exc=ValueError):
    def deco(f):
        @wraps(f)
        def inner(*a, **k):
            for i in range(n):
                try:
                    return f(*a, **k, attempt=i)
                except exc as e:
                    last = e
            raise last

        return inner

    return deco


@retry(3)
def flaky(x, attempt):
    if attempt < 2:
        raise ValueError(attempt)
    return x * attempt


@programs()
def retry_decorator(x):
    return flaky(x)


@contextmanager
def scope(stack, name):
    stack.append(name)
    try:
        yield "/".join(stack)
    finally:
        stack.pop()


@programs()
def nested_scopes(x):
    st = []
    names = []
    with scope(st, "a") as n1, scope(st, "b") as n2:
        names += [n1, n2]
        x = x + len(st)
    return x, names, st


@programs()
def exit_stack_popall(x):
    log = []
    with ExitStack() as es:
        es.callback(log.append, 1)
        keep = es.pop_all()
    log.append(2)
    keep.close()
    return x, log


class Stack(Generic[T]):
    def __init__(self):
        self.items: list[T] = []

    def push(self, v: T) -> "Stack[T]":
        self.items.append(v)
        return self

    def __iter__(self):
        yield from reversed(self.items)

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return True

    def __contains__(self, v):
        return any(v is i for i in self.items)


@programs()
def generic_class(x):
    s = Stack[torch.Tensor]().push(x).push(x + 1)
    return list(s), len(s), x in s, bool(s)


class Typed:
    def __init__(self, t, default=None):
        self.t, self.default = t, default

    def __set_name__(self, o, n):
        self.n = "_" + n

    def __get__(self, o, t=None):
        return self if o is None else getattr(o, self.n, self.default)

    def __set__(self, o, v):
        if not isinstance(v, self.t):
            raise TypeError(f"{self.n[1:]} must be {self.t.__name__}")
        setattr(o, self.n, v)


class Desc:
    lr = Typed(float, 0.1)
    n = Typed(int, 3)


@programs()
def descriptors(x):
    d = Desc()
    d.lr = 0.5
    try:
        d.n = "s"
    except TypeError as e:
        m = str(e)
    return x * d.lr * d.n, m, vars(d)


class EMA:
    def __init__(self, m, decay=0.9):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in m.named_parameters()}
        self.steps = 0

    @torch.no_grad()
    def update(self, m):
        self.steps += 1
        d = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for k, v in m.named_parameters():
            self.shadow[k].mul_(d).add_(v, alpha=1 - d)

    @contextmanager
    def swapped(self, m):
        old = {k: v.data for k, v in m.named_parameters()}
        for k, v in m.named_parameters():
            v.data = self.shadow[k]
        try:
            yield
        finally:
            for k, v in m.named_parameters():
                v.data = old[k]


def mk_ema():
    torch.manual_seed(0)
    m = nn.Linear(4, 4)
    return m, EMA(m), torch.randn(2, 4)


@programs(mk_ema)
def ema_update(m, e, x):
    e.update(m)
    return m(x), e.steps


@programs(mk_ema)
def ema_swap(m, e, x):
    with torch.no_grad(), e.swapped(m):
        y = m(x)
    return y + m(x)


def mk_grads():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    m(torch.randn(3, 4)).sum().backward()
    return (m,)


@programs(mk_grads)
def grad_clip(m):
    return clip_grad_norm_(m.parameters(), 0.5), [p.grad.clone() for p in m.parameters()]


@programs(mk_grads)
def state_dict_read(m):
    sd = m.state_dict()
    return {k: v.norm() for k, v in sd.items() if k.endswith("weight")}, list(sd), [n for n, _ in m.named_modules()]


class KVCache:
    def __init__(self, n):
        self.k = [None] * n
        self.v = [None] * n
        self.len = 0

    def update(self, i, k, v):
        if self.k[i] is not None:
            k, v = torch.cat([self.k[i], k], 1), torch.cat([self.v[i], v], 1)
        self.k[i], self.v[i] = k, v
        if i == len(self.k) - 1:
            self.len = k.shape[1]
        return k, v

    def __getitem__(self, i):
        return self.k[i], self.v[i]

    def __len__(self):
        return self.len

    def crop(self, n):
        for i in range(len(self.k)):
            self.k[i] = self.k[i][:, :n]
            self.v[i] = self.v[i][:, :n]
        self.len = n


@programs(lambda: (KVCache(2), torch.randn(1, 3, 4)))
def kv_cache(c, x):
    for i in range(2):
        for _ in range(2):
            k, v = c.update(i, x, x * 2)
    c.crop(4)
    return F.scaled_dot_product_attention(x, *c[0]), len(c)


@programs(lambda: (torch.randn(2, 5),))
def beam(x):
    beams = [((), torch.zeros(()))]
    for t in range(2):
        cand = []
        logp = x[t].log_softmax(-1)
        for seq, s in beams:
            for tok in range(3):
                cand.append((seq + (tok,), s + logp[tok]))
        beams = cand[:4]
    return [s for _, s in beams], [b for b, _ in beams]


@programs(lambda: (torch.randn(2, 5),))
def beam_topk(x):
    lp = x.log_softmax(-1)
    v, i = lp.view(-1).topk(3)
    return v, i // 5, i % 5, torch.full((2, 3), -float("inf")).scatter_(1, i.view(1, -1)[:, :2] % 3, 0)


@programs(lambda: (torch.randn(2, 5), torch.tensor([1, 3])))
def sampling_filters(logits, eos):
    t, k, p = 0.7, 3, 0.9
    logits = logits / t
    v, _ = torch.topk(logits, min(k, logits.size(-1)))
    logits = logits.masked_fill(logits < v[:, [-1]], -float("Inf"))
    s, idx = logits.sort(descending=True)
    remove = s.softmax(-1).cumsum(-1) > p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    logits = logits.masked_fill(remove.scatter(1, idx, remove), -float("inf"))
    return logits, torch.isin(idx, eos)
