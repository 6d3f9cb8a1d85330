"""Measures functions whose state changes from call to call: growing lists, caches keyed by modules, hooks that append,
and the functions of policy gradient scripts. Each of them is called often and computes little.

A compiler may capture them anew for each state, or in many small graphs; the limit is the time without a compiler.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from benchmarks.measure import SYSTEMS, Limit, Result, interleaved

LIMITS = (Limit("eager", 1.05), Limit("torch.compile", 1.0))
# Calls before the measurement: more than the versions of a function and the misses after the last version.
SETTLING_CALLS = 90

PROGRAMS: dict[str, Callable[[], Callable[[], object]]] = {}


def program(make: Callable[[], Callable[[], object]]) -> Callable[[], Callable[[], object]]:
    """Adds a program: `make()` returns a function with state of its own."""
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


@program
def state_by_parameter() -> Callable[[], object]:
    parameters = [torch.ones(16) for _ in range(3)]
    state = {parameter: torch.zeros(16) for parameter in parameters}

    def update() -> None:
        for parameter in parameters:
            state[parameter] = state[parameter] * 0.9 + parameter * 0.1

    return update


@program
def cache_by_module() -> Callable[[], object]:
    layers = [nn.Linear(16, 16).requires_grad_(False) for _ in range(3)]
    cache: dict[nn.Module, Tensor] = {}
    x = torch.ones(4, 16)

    def decode() -> Tensor:
        y = x
        for layer in layers:
            cache[layer] = torch.cat([cache[layer][-12:], layer(y)]) if layer in cache else layer(y)
            y = cache[layer][-4:]
        return y

    return decode


@program
def cache_by_weak_key() -> Callable[[], object]:
    key = nn.Linear(2, 2)
    cache = weakref.WeakKeyDictionary({key: torch.zeros(16)})

    def average() -> Tensor:
        cache[key] = cache[key] * 0.5 + 1
        return cache[key]

    return average


@program
def list_that_grows() -> Callable[[], object]:
    past: list[Tensor] = []
    x = torch.ones(1, 16)

    def attend() -> Tensor:
        if len(past) == 64:
            past.clear()
        past.append(x)
        keys = torch.cat(past)
        return torch.softmax(x @ keys.T, -1) @ keys

    return attend


@program
def hook_that_appends() -> Callable[[], object]:
    seen: collections.deque[Tensor] = collections.deque(maxlen=1000)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).requires_grad_(False)
    model[0].register_forward_hook(lambda module, args, out: seen.append(out))
    x = torch.ones(4, 16)
    return lambda: model(x)


@program
def class_made_inside() -> Callable[[], object]:
    x = torch.ones(16)

    def f() -> Tensor:
        class State:
            def __init__(self, value: Tensor) -> None:
                self.value = value

            def doubled(self) -> Tensor:
                return self.value * 2

        return State(x + 1).doubled()

    return f


@program
def lock_around_operations() -> Callable[[], object]:
    lock = threading.Lock()
    x = torch.ones(16)

    def f() -> Tensor:
        with lock:
            y = x * 2
        return y + 1

    return f


@program
def array_from_numpy() -> Callable[[], object]:
    x = torch.ones(4)
    return lambda: x + torch.from_numpy(np.random.rand(4).astype("float32"))


@program
def select_action() -> Callable[[], object]:
    policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
    saved: collections.deque[Tensor] = collections.deque(maxlen=32)
    state = [0.1, 0.2, 0.3, 0.4]

    def select() -> float:
        probabilities = torch.softmax(policy(torch.tensor(state).unsqueeze(0)), dim=1)
        choice = Categorical(probabilities)
        action = choice.sample()
        saved.append(choice.log_prob(action))
        return float(action.item())

    return select


@program
def finish_episode() -> Callable[[], object]:
    rewards: collections.deque[float] = collections.deque(maxlen=12)
    scores = [torch.zeros(1, requires_grad=True) for _ in range(12)]

    def finish() -> float:
        rewards.append(1.0)
        total, returns = 0.0, collections.deque[float]()
        for reward in list(rewards)[::-1]:
            total = reward + 0.99 * total
            returns.appendleft(total)
        targets = torch.tensor([*returns])
        targets = (targets - targets.mean()) / (targets.std(correction=0) + 1e-6)
        losses = [-score * target for score, target in zip(scores, targets)]
        loss = torch.cat(losses).sum()
        loss.backward()
        return float(loss.item())

    return finish


@program
def actor_critic_loss() -> Callable[[], object]:
    body, actor, critic = nn.Linear(4, 128), nn.Linear(128, 2), nn.Linear(128, 1)
    state, reward = torch.ones(1, 4), 0.5

    def step() -> float:
        hidden = torch.relu(body(state))
        choice = Categorical(torch.softmax(actor(hidden), dim=-1))
        action = choice.sample()
        value = critic(hidden)
        advantage = reward - value.item()
        loss = -choice.log_prob(action) * advantage + nn.functional.smooth_l1_loss(value, torch.full((1, 1), reward))
        loss.sum().backward()
        return float(action.item())

    return step


def measure(quick: bool) -> Iterator[Result]:
    """Yields a row for each program, in its steady state."""
    for name, make in PROGRAMS.items():
        torch.compiler.reset()
        runs = {}
        for system, compiled in SYSTEMS.items():
            torch.manual_seed(0)
            runs[system] = compiled(make())
            for _ in range(SETTLING_CALLS):
                runs[system]()
        yield Result(name, "us", interleaved(runs, rounds=40 if quick else 300, calls=5, scale=1e6), LIMITS)
