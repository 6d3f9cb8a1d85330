"""Programs around models in training scripts: registries, settings, meters, timers, schedules, decorators.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import abc
import contextlib
import dataclasses
import enum
import functools
import inspect
import logging
import math
import typing
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Dict, List, get_args, get_origin

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.coverage_case import Corpus, leaf

programs = Corpus()


def seeded(make):
    def made():
        torch.manual_seed(0)
        return make()

    return made


class Registry(dict):
    def register(self, name=None):

        def deco(obj):
            self[name or obj.__name__.lower()] = obj
            return obj

        return deco

    def build(self, cfg, **extra):
        cfg = dict(cfg)
        cls = self[cfg.pop("type")]
        return cls(**{**cfg, **extra})


ACTS = Registry()


@ACTS.register()
class Scale:
    def __init__(self, k, bias=0.0):
        self.k, self.bias = (k, bias)

    def __call__(self, x):
        return x * self.k + self.bias


@ACTS.register("clip")
class Clip:
    def __init__(self, lo=-1, hi=1):
        self.lo, self.hi = (lo, hi)

    def __call__(self, x):
        return x.clamp(self.lo, self.hi)


@programs()
def registry_build(x):
    ops = [ACTS.build(c, **e) for c, e in [({"type": "scale", "k": 2}, {"bias": 1}), ({"type": "clip", "hi": 2}, {})]]
    for op in ops:
        x = op(x)
    return (x, sorted(ACTS), [type(o).__name__ for o in ops])


class AttrDict(dict):
    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError as e:
            raise AttributeError(k) from e

    def __setattr__(self, k, v):
        self[k] = v

    def merge(self, other):
        for k, v in other.items():
            if isinstance(v, dict) and isinstance(self.get(k), dict):
                self[k] = AttrDict(self[k])
                self[k].merge(v)
            else:
                self[k] = v
        return self


@programs()
def attrdict_merge(x):
    c = AttrDict(model=AttrDict(dim=4, act="relu"), lr=0.1).merge({"model": {"act": "tanh"}, "seed": 1})
    c.extra = 3
    return (getattr(torch, c.model.act)(x) * c.lr + c.extra, hasattr(c, "nope"), dict(c))


class Timer(contextlib.ContextDecorator):
    log = []

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        Timer.log.append(("in", self.name))
        return self

    def __exit__(self, *e):
        Timer.log.append(("out", self.name, e[0] is not None))
        return False


@Timer("f")
def timed(x):
    return x + 1


@programs()
def timers(x):
    Timer.log = []
    with contextlib.ExitStack() as st:
        for n in "ab":
            st.enter_context(Timer(n))
        st.callback(Timer.log.append, "cb")
        y = timed(x)
    with contextlib.suppress(KeyError, ValueError):
        {}["k"]
    return (y, Timer.log)


def compose(*fs):
    return functools.reduce(lambda f, g: lambda *a, **k: g(f(*a, **k)), fs)


class Loss(abc.ABC):
    kinds = {}

    def __init_subclass__(cls, kind=None, **k):
        super().__init_subclass__(**k)
        Loss.kinds[kind] = cls

    @abc.abstractmethod
    def loss(self, x): ...

    @classmethod
    def make(cls, kind, *a):
        return cls.kinds[kind](*a)


class L2(Loss, kind="l2"):
    def loss(self, x):
        return (x**2).mean()


class L1(Loss, kind="l1"):
    def __init__(self, w=1.0):
        self.w = w

    def loss(self, x):
        return x.abs().mean() * self.w


@programs(leaf)
def losses(x):
    return (sum((Loss.make(k, *a).loss(x) for k, a in [("l2", ()), ("l1", (0.5,))])), sorted(Loss.kinds))


def counted(f):

    @functools.wraps(f)
    def w(*a, **k):
        w.calls += 1
        return f(*a, **k)

    w.calls = 0
    return w


def retry(times, errors=(ValueError,)):

    def deco(f):

        @functools.wraps(f)
        def w(*a, **k):
            for i in range(times):
                try:
                    return f(*a, attempt=i, **k)
                except errors as e:
                    last = e
            raise last

        return w

    return deco


@counted
def helper(x):
    return x + 1


@retry(3)
def flaky(x, attempt=0):
    if attempt < 2:
        raise ValueError("no")
    return x * attempt


@programs()
def decorated(x):
    return (helper(helper(flaky(x))), helper.__name__, flaky.__wrapped__ is not None)


@dataclass
class Conv:
    ch: int
    k: int = 3


@programs()
def reflect(x):
    sig = inspect.signature(Conv)
    return (
        x * len(sig.parameters),
        typing.get_type_hints(Conv)["ch"] is int,
        inspect.isfunction(compose),
        inspect.isclass(Conv),
        callable(x),
        get_origin(List[int]) is list,
        get_args(Dict[str, int]),
    )


class ConfigError(ValueError):
    def __init__(self, key, why="missing"):
        super().__init__(f"{key}: {why}")
        self.key = key


@programs()
def errors(x):
    try:
        try:
            {}["lr"]
        except KeyError as e:
            raise ConfigError("lr") from e
    except ConfigError as e:
        got = (e.key, str(e), type(e.__cause__).__name__, isinstance(e, ValueError))
    else:
        got = None
    finally:
        x = x + 1
    return (x, got)


class LRU(MutableMapping):
    def __init__(self, n):
        self.n, self.d = (n, OrderedDict())

    def __getitem__(self, k):
        self.d.move_to_end(k)
        return self.d[k]

    def __setitem__(self, k, v):
        self.d[k] = v
        self.d.move_to_end(k)
        if len(self.d) > self.n:
            self.d.popitem(last=False)

    def __delitem__(self, k):
        del self.d[k]

    def __iter__(self):
        return iter(self.d)

    def __len__(self):
        return len(self.d)


@programs()
def lru_mapping(x):
    c = LRU(2)
    c["a"] = x
    c["b"] = x + 1
    c["a"]
    c["c"] = x * 2
    return (c["a"] + c["c"], list(c), c.pop("a") is not None, c.setdefault("q", 1))


def validate(**checks):

    def deco(f):
        sig = inspect.signature(f)

        @functools.wraps(f)
        def w(*a, **k):
            b = sig.bind(*a, **k)
            b.apply_defaults()
            for n, c in checks.items():
                if not c(b.arguments[n]):
                    raise ValueError(n)
            return f(*b.args, **b.kwargs)

        return w

    return deco


@validate(k=lambda v: v > 0)
def scaled(x, k, b=1):
    return x * k + b


@programs()
def sig_bind(x):
    try:
        scaled(x, -1)
    except ValueError as e:
        m = str(e)
    return (scaled(x, k=2), m)


@functools.singledispatch
def to_list(v):
    return v


@to_list.register(torch.Tensor)
def _(v):
    return v.unbind()


@to_list.register(dict)
def _(v):
    return {k: to_list(t) for k, t in v.items()}


@to_list.register(list)
@to_list.register(tuple)
def _(v):
    return [to_list(t) for t in v]


@programs()
def dispatch(x):
    return to_list({"a": x, "b": [x, 1], "c": (2, "s")})


class Pipeline:
    def __init__(self, *steps):
        self.steps = list(steps)

    def __or__(self, o):
        return Pipeline(*self.steps, o)

    def __call__(self, x):
        return functools.reduce(lambda v, f: f(v), self.steps, x)

    def __getitem__(self, i):
        return Pipeline(*self.steps[i]) if isinstance(i, slice) else self.steps[i]

    def __repr__(self):
        return f"{type(self).__name__}({', '.join((getattr(s, '__name__', type(s).__name__) for s in self.steps))})"


@programs()
def pipes(x):
    p = Pipeline() | torch.sin | (lambda v: v * 2) | nn.ReLU() | functools.partial(torch.add, other=1)
    return (p(x), p[:2](x), repr(p[:1]), len(p.steps))


@programs()
def logged(x):
    logging.getLogger("x").debug("hi %s", 3)
    return x + 1


class Temp:
    def __init__(self, c):
        self._c = c

    @property
    def c(self):
        return self._c

    @c.setter
    def c(self, v):
        self._c = v

    @c.deleter
    def c(self):
        self._c = None

    f = property(lambda s: s._c * 2, doc="d")


@programs()
def props(x):
    t = Temp(x)
    t.c = t.c + 1
    y = t.f
    del t.c
    return (y, t.c, Temp.f.__doc__, isinstance(Temp.c, property))


class AverageMeter(object):
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = (name, fmt)
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        fmtstr = "{name} {val" + self.fmt + "} ({avg" + self.fmt + "})"
        return fmtstr.format(**self.__dict__)


@programs()
def average_meter(x):
    m = AverageMeter("loss", ":.4e")
    for i in range(1, 4):
        m.update(i / 2, n=2)
    return (x * m.avg, str(m), "%s" % m)


def set_requires_grad(nets, flag=False):
    if not isinstance(nets, list):
        nets = [nets]
    for n in nets:
        if n is not None:
            for p in n.parameters():
                p.requires_grad = flag


@programs(seeded(lambda: (nn.Linear(4, 4), nn.Linear(4, 1), torch.randn(2, 4))))
def gan_step(g, d, z):
    set_requires_grad(d, False)
    fake = g(z)
    lg = F.binary_cross_entropy_with_logits(d(fake), torch.ones(2, 1))
    set_requires_grad([d, None], True)
    ld = F.binary_cross_entropy_with_logits(d(fake.detach()), torch.zeros(2, 1))
    return (lg, ld, all((p.requires_grad for p in d.parameters())))


class EMA:
    def __init__(self, model, decay):
        self.decay, self.shadow = (
            decay,
            {n: p.clone().detach() for n, p in model.named_parameters() if p.requires_grad},
        )

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            if p.requires_grad:
                self.shadow[n].lerp_(p, 1 - self.decay)

    @contextlib.contextmanager
    def applied(self, model):
        backup = {n: p.detach().clone() for n, p in model.named_parameters()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(self.shadow[n])
        try:
            yield
        finally:
            with torch.no_grad():
                for n, p in model.named_parameters():
                    p.copy_(backup[n])


@programs(seeded(lambda: (lambda m: (m, EMA(m, 0.9), torch.randn(2, 4)))(nn.Linear(4, 2))))
def ema_swap(m, e, x):
    e.update(m)
    with e.applied(m), torch.no_grad():
        a = m(x)
    return (a, m(x))


def param_groups_lrd(model, lr, decay):
    groups = {}
    for n, p in model.named_parameters():
        i = int(n.split(".")[0]) if n[0].isdigit() else 0
        key = f"layer_{i}_{('no_' if p.ndim == 1 else '')}decay"
        groups.setdefault(key, {"params": [], "lr": lr * decay**i})["params"].append(p)
    return list(groups.values())


@programs(seeded(lambda: (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 4))))
def layer_decay(m, x):
    gs = param_groups_lrd(m, 0.1, 0.5)
    return (m(x) + sum((g["lr"] for g in gs)), [len(g["params"]) for g in gs])


class Transform(typing.Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Compose:
    def __init__(self, ts: typing.Sequence[Transform]):
        self.ts = ts

    def __call__(self, x):
        for t in self.ts:
            x = t(x)
        return x

    def __repr__(self):
        return f"{self.__class__.__name__}(" + "\n".join((f"    {t}" for t in self.ts)) + ")"


class Normalize:
    def __init__(self, m, s, inplace=False):
        self.m, self.s, self.inplace = (m, s, inplace)

    def __call__(self, x):
        m, s = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in (self.m, self.s))
        return (x if self.inplace else x.clone()).sub_(m[:, None]).div_(s[:, None])

    def __repr__(self):
        return f"Normalize(mean={self.m})"


@programs(lambda: torch.randn(2, 4))
def transforms(x):
    t = Compose([Normalize([0.1, 0.2], [1.0, 2.0]), lambda v: v.flip(-1)])
    return (t(x), repr(Compose(t.ts[:1])))


class Schedule(enum.Enum):
    LINEAR = "linear"
    COS = "cos"

    def __call__(self, t):
        return {"linear": lambda: t, "cos": lambda: 1 - math.cos(t * math.pi / 2)}[self.value]()

    def __str__(self):
        return self.value


@programs()
def enum_call(x):
    return (
        x * Schedule.COS(0.5),
        f"{Schedule.LINEAR}",
        "%s-%s" % (Schedule.COS, 3),
        "{:>8}".format(str(Schedule.COS)),
        [str(s) for s in Schedule],
    )


class ConfigMixin:
    def to_dict(self):
        return {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in vars(self).items() if not k.startswith("_")}

    @classmethod
    def from_dict(cls, d):
        return cls(**{k: v for k, v in d.items() if k in inspect.signature(cls).parameters})

    def diff(self, other):
        return {k: (v, getattr(other, k)) for k, v in self.to_dict().items() if getattr(other, k) != v}


@dataclasses.dataclass
class ModelCfg(ConfigMixin):
    dim: int = 4
    heads: int = 2
    act: str = "gelu"
    _private: int = 0

    @property
    def head_dim(self):
        return self.dim // self.heads


@programs()
def config_mixin(x):
    c = ModelCfg.from_dict({"dim": 8, "junk": 1, "act": "relu"})
    return (getattr(F, c.act)(x) * c.head_dim, c.to_dict(), c.diff(ModelCfg()), {**dataclasses.asdict(c)})


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(4, 3)

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.pi(x))


@programs(seeded(lambda: (Policy(), torch.randn(5, 4), torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0]))))
def reinforce(p, s, r):
    d = p(s)
    a = d.sample()
    ret, R = ([], 0.0)
    for v in reversed(r.unbind()):
        R = v + 0.9 * R
        ret.insert(0, R)
    ret = torch.stack(ret)
    adv = (ret - ret.mean()) / (ret.std() + 1e-08)
    return -(d.log_prob(a) * adv).mean() - 0.01 * d.entropy().mean()


class Versioned:
    _migrations = {}

    @classmethod
    def migration(cls, v):

        def deco(f):
            cls._migrations[v] = f
            return f

        return deco

    @classmethod
    def upgrade(cls, state):
        while f := cls._migrations.get(state["v"]):
            state = {**f(state), "v": state["v"] + 1}
        return state


@Versioned.migration(0)
def _m0(s):
    return {**s, "lr": s.pop("learning_rate")} if "learning_rate" in s else s


@Versioned.migration(1)
def _m1(s):
    return s | {"wd": 0.1}


@programs()
def migrations(x):
    s = Versioned.upgrade({"v": 0, "learning_rate": 0.5})
    return (x * s["lr"] * s["wd"], s)


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.heads = nn.ModuleDict({t: nn.Linear(4, n) for t, n in tasks.items()})
        self.log_vars = nn.ParameterDict({t: nn.Parameter(torch.zeros(())) for t in tasks})

    def forward(self, x, targets):
        losses = {t: F.mse_loss(h(x), targets[t]) for t, h in self.heads.items() if t in targets}
        return (sum((torch.exp(-self.log_vars[t]) * loss + self.log_vars[t] for t, loss in losses.items())), losses)


@programs(seeded(lambda: (MultiTask({"a": 1, "b": 2}), torch.randn(3, 4), {"b": torch.zeros(3, 2)})))
def multitask(m, x, t):
    return m(x, t)


ARCH = {f"resnet{d}": functools.partial(dict, depth=d, wide=w) for d, w in ((18, 1), (50, 2))}


@programs()
def partial_registry(x):
    return (
        x * ARCH["resnet50"]()["depth"],
        ARCH["resnet18"](wide=3),
        globals()["ARCH"] is ARCH,
        [n for n in dir(torch.nn) if n == "ReLU"],
    )
