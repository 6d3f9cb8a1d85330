"""Numbers that a training program changes over time: each is an input from its second value on, wherever it lives.

Optimizers under schedules come first, with all scheduled numbers; then numbers of the program itself.
"""

# The programs keep the style of users, against the advice of linters.

from __future__ import annotations

import collections
import dataclasses
import math
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn

import minidynamo

optim = torch.optim
schedules = optim.lr_scheduler


class Lion(optim.Optimizer):
    """The optimizer in the published form."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                beta1, beta2 = group["betas"]
                update = state["exp_avg"] * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign(), alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1),
    "nesterov": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.1, amsgrad=True, foreach=False),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.1, foreach=True),
    "nadam": lambda ps: optim.NAdam(ps, lr=0.1, foreach=False),
    "adamax": lambda ps: optim.Adamax(ps, lr=0.1, foreach=True),
    "rmsprop": lambda ps: optim.RMSprop(ps, lr=0.1, momentum=0.9, centered=True),
    "lion": Lion,
}
SCHEDULES = {
    "step": lambda o: schedules.StepLR(o, 3, 0.5),
    "milestones": lambda o: schedules.MultiStepLR(o, [2, 5, 7], 0.5),
    "lambda": lambda o: schedules.LambdaLR(o, lambda epoch: min(1.0, epoch / 5)),
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 8),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.3, total_steps=101, cycle_momentum=_has_momentum(o)),
    "one cycle of the rate": lambda o: schedules.OneCycleLR(o, 0.3, total_steps=101, cycle_momentum=False),
    "cycles": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=4, cycle_momentum=_has_momentum(o)),
    "linear": lambda o: schedules.LinearLR(o, 0.1, total_iters=6),
    "one after the other": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=4), schedules.ExponentialLR(o, 0.9)], [4]
    ),
    "polynomial": lambda o: schedules.PolynomialLR(o, 9, 2.0),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0, factor=0.5),
}
# Each optimizer and each schedule at least once; schedules of the momentum with each optimizer that reads the momentum.
PAIRS = [
    *((name, "one cycle") for name in OPTIMIZERS),
    *(("adamw", name) for name in SCHEDULES if name != "one cycle"),
    *((name, "cycles") for name in ("nesterov", "adam", "lion")),
    *((name, "step") for name in ("sgd", "rmsprop", "lion")),
]


def _has_momentum(optimizer):
    return "momentum" in optimizer.defaults or "betas" in optimizer.defaults


def _trained(make, schedule, steps, wrap):
    """Returns the parameters after each step, and the wrapped step. Two parameter groups have separate rates."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = make([{"params": net[0].parameters(), "lr": 0.05}, {"params": net[2].parameters()}])
    schedule = schedule(optimizer)
    step = wrap(optimizer.step)
    x, found = torch.randn(5, 3), []
    for number in range(steps):
        optimizer.zero_grad()
        net(x + number % 3).square().mean().backward()
        step()
        schedule.step(*([1.0] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
        found.append([p.detach().clone() for p in net.parameters()])
    return found, step


@pytest.mark.parametrize(("optimizer", "schedule"), PAIRS)
def test_a_schedule_costs_one_compile_more(optimizer, schedule):
    steps = 100 if (optimizer, schedule) == ("adamw", "one cycle") else 10
    expected, _ = _trained(OPTIMIZERS[optimizer], SCHEDULES[schedule], steps, lambda step: step)
    found, step = _trained(
        OPTIMIZERS[optimizer],
        SCHEDULES[schedule],
        steps,
        lambda step: minidynamo.compile(step, backend="eager", fullgraph=True),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert step.stats.compiles <= 2


# --- numbers of the program -----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    rate: float
    betas: tuple


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float
    count: int = 0


class TensorNumber:
    rate = 0.0
    betas = (0.0, 0.0)
    options = {"eps": [0.0]}  # noqa: RUF012


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature, self.epoch, self.schedule = 1.0, 0, {"noise": [0.0]}

    def forward(self, x):
        self.epoch += 1
        noise = self.schedule["noise"][0]
        return (x / self.temperature).softmax(-1) + noise**self.epoch


RATE, BETAS = 0.0, (0.0, 0.0)


def _globals():
    def program(x, rate, count):
        return x * RATE + BETAS[0] ** count

    def change(rate, count):
        globals().update(RATE=rate, BETAS=(1 - rate, rate))

    return program, change


def _closure():
    factor, betas = 0.0, (0.0, (0.0, 0))

    def program(x, rate, count):
        return x * min(1.0, factor) + betas[1][0]

    def change(rate, count):
        nonlocal factor, betas
        factor, betas = rate, (rate, (1 - rate, count))

    return program, change


def _defaults():
    def inner(x, scale=0.0, *, betas=(0.0, 0.0)):
        return x * scale - betas[1]

    def program(x, rate, count):
        return inner(x)

    def change(rate, count):
        inner.__defaults__, inner.__kwdefaults__ = (rate,), {"betas": (0.5, 1 - rate)}

    return program, change


def _class_attributes():
    def program(x, rate, count):
        return x * TensorNumber.rate + TensorNumber().rate - TensorNumber.betas[1] * TensorNumber().options["eps"][0]

    def change(rate, count):
        TensorNumber.rate, TensorNumber.betas, TensorNumber.options = rate, (rate, 1 - rate), {"eps": [rate]}

    return program, change


def _attributes_of_a_module():
    model = Model()

    def program(x, rate, count):
        return model(x)

    def change(rate, count):
        model.temperature, model.epoch, model.schedule = 2 * rate, count, {"noise": [rate]}

    return program, change


def _plain(program):
    return lambda: (program, lambda rate, count: None)


PLACES = {
    "globals": _globals,
    "closures": _closure,
    "defaults": _defaults,
    "class attributes": _class_attributes,
    "attributes of a module": _attributes_of_a_module,
    "nested tuples": _plain(lambda x, rate, count: _nested(x, ("a", (rate, [{"b": (count, 1 - rate)}])))),
    "records": _plain(lambda x, rate, count: _records(x, Pair(rate, (count, rate)), Settings(rate, count))),
    "keywords": _plain(lambda x, rate, count: _keywords(x, rate=rate, count=count)),
    "sums and powers": _plain(lambda x, rate, count: _sums(x, {"a": rate, "b": 0.25}, count)),
    "a schedule of its own": _plain(lambda x, rate, count: _cosine(x, types.SimpleNamespace(base=rate), count)),
    "averages": _plain(lambda x, rate, count: _average(x, collections.deque([min(rate, (1 + count) / (10 + count))]))),
    "clipping": _plain(lambda x, rate, count: _clipped(x, rate)),
}


def _nested(x, given):
    rate, (entry,) = given[1]
    return x * rate + entry["b"][0] * entry["b"][1]


def _records(x, pair, settings):
    rate, (count, _) = pair
    return x * rate + count, dataclasses.replace(settings, rate=rate / 2).rate, pair._replace(rate=settings.count)


def _keywords(x, **options):
    return x * options["rate"] + sum(options.values())


def _sums(x, weights, count):
    total = sum(weights.values())
    return [x * (weight / total) ** count for weight in weights.values()]


def _cosine(x, settings, count):
    return x * (settings.base * 0.5 * (1 + math.cos(math.pi * count / 50)))


def _average(x, decays):
    average = torch.ones_like(x)
    for decay in decays:
        average.mul_(decay).add_(x, alpha=1 - decay)
        average.lerp_(x, 1 - decay)
    return average


def _clipped(x, rate):
    x = x.clone().requires_grad_()
    x.grad = x.detach() * 2
    return nn.utils.clip_grad_norm_([x], rate), x.grad


@pytest.mark.parametrize("name", PLACES)
def test_numbers_in_all_places(name):
    found = []
    for wrap in (lambda f: f, lambda f: minidynamo.compile(f, backend="eager", fullgraph=True)):
        program, change = PLACES[name]()
        program = wrap(program)
        results = []
        for k in range(2, 9):
            change(0.07 * k, 3 * k)
            results.append(program(torch.linspace(-1, 1, 4), 0.07 * k, 3 * k))
        found.append(results)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert program.stats.compiles == 2


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_whole_training_step_with_numbers_that_change(backend):
    def trained(wrap):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        average = [p.detach().clone() for p in net.parameters()]
        optimizer = optim.AdamW(net.parameters(), lr=0.01)
        schedule = schedules.OneCycleLR(optimizer, 0.1, total_steps=12)

        def train(x, temperature, limit, decay):
            optimizer.zero_grad()
            loss = (net(x) / temperature).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), limit)
            optimizer.step()
            with torch.no_grad():
                for mean, p in zip(average, net.parameters()):
                    mean.lerp_(p, 1 - decay)
            return loss.detach(), norm

        train, results = wrap(train), []
        for k in range(10):
            results.append(train(torch.randn(4, 3), 2.0 - 0.1 * k, 0.5 + 0.05 * k, min(0.9, (1 + k) / (10 + k))))
            schedule.step()
        return (results, average, [*net.parameters()]), train

    expected, _ = trained(lambda f: f)
    found, train = trained(lambda f: minidynamo.compile(f, backend=backend))
    torch.testing.assert_close(found, expected)
    assert train.stats.compiles <= 4  # before and after `backward`: each again once the state exists
