"""Programs of reinforcement learning: each call reads other items of a memory, of which some are None."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.core.stats import Stats

BATCH = 16


class Transition(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    next_state: torch.Tensor | None
    reward: torch.Tensor


class Memory:
    def __init__(self) -> None:
        self.items: deque[Transition] = deque(maxlen=200)

    def sample(self, size: int) -> list[Transition]:
        return random.sample(self.items, size)

    def __len__(self) -> int:
        return len(self.items)


class Learner:
    """Q-learning with a replay memory and a target network that follows slowly."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.policy, self.target = (nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(2))
        self.target.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-2, amsgrad=True)
        self.memory = Memory()

    def remember(self) -> None:
        following = None if random.random() < 0.4 else torch.randn(1, 4)
        self.memory.items.append(Transition(torch.randn(1, 4), torch.randint(2, (1, 1)), following, torch.randn(1)))

    def learn(self) -> None:
        if len(self.memory) < BATCH:
            return
        batch = Transition(*zip(*self.memory.sample(BATCH)))
        present = tuple(map(lambda state: state is not None, batch.next_state))  # noqa: C417
        mask = torch.tensor(present, dtype=torch.bool)
        following = torch.cat([state for state in batch.next_state if state is not None])
        values = self.policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
        next_values = torch.zeros(BATCH)
        with torch.no_grad():
            next_values[mask] = self.target(following).max(1).values
        expected = next_values * 0.99 + torch.cat(batch.reward)
        loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.policy.parameters(), 100)
        self.optimizer.step()

    def follow(self) -> None:
        target, policy = self.target.state_dict(), self.policy.state_dict()
        for key in policy:
            target[key] = policy[key] * 0.05 + target[key] * 0.95
        self.target.load_state_dict(target)


def _train(learn: Any, follow: Any, learner: Learner) -> list[int]:
    """Trains for a while, and returns the number of compiles after each call that learns."""
    compiles = []
    for _ in range(BATCH + 11):
        learner.remember()
        learn(learner)
        follow(learner)
        if len(learner.memory) >= BATCH:
            compiles.append(sum(getattr(f, "stats", Stats()).compiles for f in (learn, follow)))
    return compiles


@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=[pytest.mark.cpp, pytest.mark.slow])])
def test_learning_from_a_replay_memory(backend):
    learner = Learner()
    learn = minidynamo.compile(Learner.learn, backend=backend)
    follow = minidynamo.compile(Learner.follow, backend=backend, fullgraph=True)
    compiles = _train(learn, follow, learner)
    reference = Learner()
    _train(Learner.learn, Learner.follow, reference)
    # Two samples may have as many states by chance: then this size varies from a later call on.
    assert compiles[5] == compiles[-1], compiles
    for module, other in ((learner.policy, reference.policy), (learner.target, reference.target)):
        for found, expected in zip(module.parameters(), other.parameters()):
            torch.testing.assert_close(found, expected)
    assert len(str(learn.breaks()).split("graph break: ")) <= 8  # one for each line, whatever the version
