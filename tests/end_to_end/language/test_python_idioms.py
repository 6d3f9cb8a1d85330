"""Python idioms of model code, beyond the single features."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def batch():
    return torch.randn(2, 3, 8)


class Attention(nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(d // heads)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, mask=None, *, return_weights=False):
        b, n, d = x.shape
        q, k, v = (self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)).unbind(0)
        scores = q @ k.transpose(-2, -1) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1)
        out = self.out((weights @ v).transpose(1, 2).reshape(*x.shape[:-1], d))
        return (out, weights) if return_weights else out


@dataclass
class Settings:
    width: int = 8
    layers: int = 2
    activation: str = "gelu"
    dropout: float = 0.0
    extras: dict = field(default_factory=dict)


class Net(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.blocks = nn.ModuleList(
            [nn.ModuleDict({"norm": nn.LayerNorm(8), "ff": nn.Linear(8, 8)}) for _ in range(settings.layers)]
        )
        self.act = getattr(F, settings.activation)
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(8) * i) for i in range(settings.layers)])
        self.calls = 0

    def forward(self, x, cache: Optional[dict] = None, **kwargs):
        self.calls += 1
        hidden = []
        for i, (block, gain) in enumerate(zip(self.blocks, self.gains)):
            residual = x
            x = block["ff"](self.act(block["norm"](x))) * gain
            x = F.dropout(x, self.settings.dropout, self.training) + residual
            hidden.append(x)
            if cache is not None:
                cache[f"layer{i}"] = x.detach()
        if kwargs.pop("output_hidden", False):
            return x, tuple(hidden)
        return x


class Registry:
    functions = {}

    @classmethod
    def register(cls, name):
        def decorate(fn):
            cls.functions[name] = fn
            return fn

        return decorate


@Registry.register("double")
def double(x):
    return x * 2


@Registry.register("square")
def square(x):
    return x * x


class Mixin:
    def scaled(self, x):
        return x * self.factor

    @property
    def factor(self):
        return self._factor


class Model(Mixin, nn.Module):
    _factor = 3

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(OrderedDict([("first", nn.Linear(4, 4)), ("act", nn.ReLU())]))

    def helper(self, x, fn=None):
        fn = fn or self.scaled
        return fn(self.inner(x))

    def forward(self, x):
        return self.helper(x) + self.inner.first.weight.sum() + self.helper(x, fn=lambda v: v * 2)


@programs()
class Cases:
    @programs(lambda: (Attention(), batch()))
    def attention(m, x):
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device))
        return m(x), m(x, mask), m(x, mask=mask, return_weights=True)[1].shape

    @programs(lambda: (Net(Settings()), batch()))
    def settings_and_caches(m, x):
        cache = {}
        y, hidden = m(x, cache, output_hidden=True)
        return y, hidden, list(cache), cache["layer1"], m.calls

    @programs(lambda: ([torch.randn(2), torch.randn(3)], {"scale": 2.0, "bias": torch.ones(1)}))
    def map_over_a_structure(xs, options):
        def apply(value, fn):
            if isinstance(value, torch.Tensor):
                return fn(value)
            if isinstance(value, (list, tuple)):
                return type(value)([apply(v, fn) for v in value])
            if isinstance(value, dict):
                return {k: apply(v, fn) for k, v in value.items()}
            return value

        return apply(xs, lambda t: t * options["scale"]), apply({"p": (xs[0], [xs[1], "s"]), "q": None}, torch.neg)

    def transposing_lists(x):
        rows = [(1, x), (2, x + 1), (3, x + 2)]
        numbers, tensors = zip(*rows)
        return sum(numbers), torch.stack(tensors), [list(column) for column in zip(*[[1, 2], [3, 4]])]

    @programs(lambda: (vector(), None), lambda: (vector(), 3), graphs=2, recompiles=1)
    def optional_arguments(x, n=None):
        n = n or 1
        n = 2 if n is None else n
        return x * n

    def early_return_and_assert(x):
        assert x.dim() == 1, f"expected a vector, got {x.dim()} dimensions"
        assert isinstance(x, torch.Tensor)
        if x.shape[0] > 100:
            return None
        del_me = x + 1
        y = del_me * 2
        del del_me
        return y

    @programs(breaks=None, graphs=None)
    def failing_assert(x):
        y = x + 1
        rank = x.dim()  # pytest puts the repr of called objects, addresses included, into the message of an assert
        assert rank == 2, "not a matrix"
        return y

    @programs(lambda: torch.randn(4, 6))
    def shapes_and_views(x):
        b, n = x.shape
        h = n // 2
        y = x.view(b, 2, h).transpose(1, 2).contiguous().view(b, -1)
        z = x.reshape(*x.shape[:-1], 2, -1).flatten(1)
        made = y, z, x.new_zeros(b, h), torch.arange(n, device=x.device, dtype=x.dtype)
        return *made, x.expand(2, *x.shape), x.size()[:-1]

    @programs(lambda: torch.randn(2, 3), lambda: torch.randn(2, 3).double(), graphs=2, recompiles=1)
    def dispatch_on_dtype(x):
        table = {torch.float32: 1e-5, torch.float64: 1e-12}
        eps = table.get(x.dtype, 1e-3)
        return x / (x.norm() + eps), str(x.dtype), x.dtype == torch.float32

    def registry_of_functions(x):
        return [fn(x) for _, fn in sorted(Registry.functions.items())], Registry.functions["square"](x)

    @programs(lambda: (Model(), torch.randn(2, 4)))
    def mixin_and_properties(m, x):
        return m(x), m.factor, [name for name, _ in m.inner.named_children()]

    @programs(lambda: (nn.LSTM(4, 5, batch_first=True), torch.randn(2, 3, 4)), breaks=None, graphs=None)
    def recurrent_net(m, x):
        out, (h, c) = m(x)
        return out, h, c

    @programs(lambda: (nn.GRUCell(4, 5), torch.randn(3, 2, 4)))
    def recurrent_cell_in_a_loop(m, xs):
        h = None
        states = []
        for x in xs:
            h = m(x, h)
            states.append(h)
        return torch.stack(states), len(states)

    @programs(lambda: (nn.MultiheadAttention(8, 2, batch_first=True), batch()), breaks=None, graphs=None)
    def multihead_attention(m, x):
        return m(x, x, x, need_weights=False)[0]

    @programs(
        lambda: (nn.Linear(4, 3), nn.CrossEntropyLoss(label_smoothing=0.1), torch.randn(5, 4), torch.arange(5) % 3)
    )
    def losses_from_modules(m, criterion, x, target):
        logits = m(x)
        correct = (logits.argmax(dim=1) == target).float().mean()
        return criterion(logits, target) + F.mse_loss(logits, torch.zeros_like(logits)), correct.detach()

    @programs(lambda: (nn.Linear(4, 3), torch.randn(5, 4)), breaks=None, graphs=None)
    def training_step_with_backward(m, x):
        loss = m(x).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss.detach()
