"""Measures training steps of a few operations, where calls of graphs cost more than kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import SYSTEMS, Limit, Result, interleaved

LIMITS = (Limit("eager", 1.0), Limit("torch.compile", 0.5))
CALL_LIMITS = (Limit("torch.compile", 0.1),)

Step = Callable[[], None]
Program = Callable[[Callable[[Any], Any]], Step]


def _policy(system: Callable[[Any], Any]) -> Step:
    """A policy network: one observation of 4 numbers, two actions."""
    model = system(nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2), nn.Softmax(-1)))
    x = torch.randn(1, 4)
    return lambda: model(x).sum().backward()


class ActorCritic(nn.Module):
    """Two heads on one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.actor, self.critic = nn.Linear(4, 128), nn.Linear(128, 2), nn.Linear(128, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.hidden(x))
        return functional.softmax(self.actor(hidden), -1), self.critic(hidden)


def _actor_critic(system: Callable[[Any], Any]) -> Step:
    model, x = system(ActorCritic()), torch.randn(4)

    def step() -> None:
        actions, value = model(x)
        (actions.sum() + value.sum()).backward()

    return step


def _cell(system: Callable[[Any], Any]) -> Step:
    model, x, h, c = system(nn.LSTMCell(16, 32)), *(torch.randn(4, n) for n in (16, 32, 32))

    def step() -> None:
        hidden, state = model(x, (h, c))
        (hidden.sum() + state.sum()).backward()

    return step


def _perceptron(system: Callable[[Any], Any]) -> Step:
    layers = (nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model, x = system(nn.Sequential(*layers)), torch.randn(32, 16)
    return lambda: model(x).sum().backward()


def _loss(system: Callable[[Any], Any]) -> Step:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(((x - y) * 2).abs()).mean()

    compiled, x, y = system(loss), torch.randn(8, requires_grad=True), torch.randn(8)
    return lambda: compiled(x, y).backward()


class Swish(torch.autograd.Function):
    """x * sigmoid(x), with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Returns the value."""
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Returns the gradient of x."""
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        found: Tensor = gradient * (s + x * s * (1 - s))
        return found


def _function(system: Callable[[Any], Any]) -> Step:
    def swish(x: Tensor) -> Any:
        return Swish.apply(x)  # type: ignore[no-untyped-call]

    compiled, x = system(swish), torch.randn(8, requires_grad=True)
    return lambda: compiled(x).sum().backward()


STEPS: dict[str, Program] = {
    "policy net, batch 1": _policy,
    "actor-critic with two heads": _actor_critic,
    "one step of an LSTM cell": _cell,
    "MLP of 3 layers, batch 32": _perceptron,
    "scalar loss of 5 pointwise operations": _loss,
    "a custom autograd.Function": _function,
}


def _two(system: Callable[[Any], Any], x: Tensor, y: Tensor) -> Step:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y) * 2

    return partial(system(f), x, y)


def _keyword(system: Callable[[Any], Any], x: Tensor, y: Tensor) -> Step:
    def f(x: Tensor, *, y: Tensor) -> Tensor:
        return torch.relu(x + y) * 2

    return partial(system(f), x, y=y)


def _list(system: Callable[[Any], Any], x: Tensor, y: Tensor) -> Step:
    def f(xs: list[Tensor]) -> Tensor:
        return torch.relu(xs[0] + xs[1]) * 2

    return partial(system(f), [x, y])


def _dict(system: Callable[[Any], Any], x: Tensor, y: Tensor) -> Step:
    def f(xs: dict[str, Tensor]) -> Tensor:
        return torch.relu(xs["x"] + xs["y"]) * 2

    return partial(system(f), {"x": x, "y": y})


class Shift(nn.Module):
    """Adds a buffer."""

    y: Tensor

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.register_buffer("y", y)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.y) * 2


def _module(system: Callable[[Any], Any], x: Tensor, y: Tensor) -> Step:
    return partial(system(Shift(y)), x)


CALLS: dict[str, Callable[..., Step]] = {
    "two tensors": _two,
    "a keyword": _keyword,
    "a list of tensors": _list,
    "a dict of tensors": _dict,
    "a module": _module,
}


def measure(quick: bool) -> Iterator[Result]:
    """Yields a row for the forward and backward of each step, and one for a call without gradients per signature."""
    rounds = 9 if quick else 60
    for name, program in STEPS.items():
        torch.compiler.reset()
        runs = {system: program(function) for system, function in SYSTEMS.items()}
        yield Result(f"step: {name}", "us", interleaved(runs, rounds=rounds, calls=100, scale=1e6), LIMITS)
    for name, call in CALLS.items():
        torch.compiler.reset()
        x, y = torch.randn(8), torch.randn(8)
        calls = {system: call(function, x, y) for system, function in SYSTEMS.items()}
        samples = interleaved(calls, rounds=rounds, calls=1000, scale=1e6)
        yield Result(f"call: relu(x + y) * 2 of {name}", "us", samples, CALL_LIMITS)
